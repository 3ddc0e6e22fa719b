// gyre: one binary, a command each for running, asking and looking at models.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cli/active_waiting.h"
#include "cli/commands.h"
#include "kernels/ops.h"
#include "model/quantize.h"

namespace gyre {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

std::vector<std::string> IsaNames() {
  std::vector<std::string> names;
  for (Isa isa : BuiltIsas()) names.emplace_back(IsaName(isa));
  return names;
}

void AddBinFlags(CLI::App* app, OpenOptions* o) {
  app->add_option("--tokenizer", o->tokenizer_path, ".bin models: the tokenizer.bin (default: tok*.bin beside it)");
  app->add_option("--rope-base", o->rope_base, ".bin models: rotary base (default 10000; 500000 for Llama 3)");
  app->add_option("--norm-eps", o->norm_eps, ".bin models: epsilon of the norms (default 1e-5)");
}

void AddOpenFlags(CLI::App* app, std::string* model, OpenOptions* o) {
  app->add_option("MODEL", *model, "GGUF file, folder of safetensors, or llama2.c .bin")->required()->type_name("FILE");
  AddBinFlags(app, o);
}

void AddEngineFlags(CLI::App* app, RingOptions* o);

// A model to run here, or a cluster that runs one.
void AddTargetFlags(CLI::App* app, RingOptions* o) {
  auto* model =
      app->add_option("MODEL", o->model, "GGUF file, folder of safetensors, or llama2.c .bin")->type_name("FILE");
  app->add_option("--cluster", o->cluster, "ask the coordinator at HOST:PORT instead of running a MODEL")
      ->excludes(model)
      ->type_name("HOST:PORT");
  AddBinFlags(app, &o->open);
  const auto* positive = &CLI::PositiveNumber;
  app->add_option("--stages", o->stages, "cut the model into N stages, a ring in this process")->check(*positive);
  AddEngineFlags(app, o);
}

void AddCpusFlag(CLI::App* app, std::string* cpus) {
  app->add_option("--cpus", *cpus,
                  "processors for the threads, as 0-3,8 (default: wherever the system moves them; on several NUMA "
                  "nodes a core each)")
      ->type_name("LIST");
}

void AddEngineFlags(CLI::App* app, RingOptions* o) {
  const auto* positive = &CLI::PositiveNumber;
  app->add_option("-t,--threads", o->threads, "threads over all stages (default: the cores)")->check(*positive);
  AddCpusFlag(app, &o->cpus);
  app->add_option("-c,--ctx", o->ctx, "context in tokens (default: what the file says)")->check(*positive);
  app->add_option("--kv-tokens", o->kv_tokens, "tokens of KV cache (default: the context)")->check(*positive);
  app->add_option("--kv-type", o->kv_type, "type of the KV cache")
      ->check(CLI::IsMember(std::vector<std::string>(kKvTypeNames.begin(), kKvTypeNames.end())));
  app->add_option("--block-size", o->block_size, "KV positions a block")->check(CLI::Range(1, 256));
  app->add_option("--chunk", o->chunk, "prompt tokens of one sequence a step")->check(*positive);
  app->add_option("--max-rows", o->max_rows, "rows of a step")->check(*positive);
  app->add_option("--isa", o->isa, "instruction set of the kernels (default: the best this CPU has)")
      ->check(CLI::IsMember(IsaNames()));
  app->add_option("--wire", o->wire,
                  "what activations travel as between stages; f16 and q8 round them, the text may differ")
      ->check(CLI::IsMember({"f32", "f16", "q8"}));
  app->add_flag("--exact", o->exact, "f32 activations with quantized weights too (slower)");
  app->add_flag("--no-prefix-cache", o->no_prefix_cache, "never reuse the KV cache of equal beginnings");
  app->add_flag("--no-chunked-prefill", o->no_chunked_prefill, "a whole prompt in one step");
  app->add_flag("--no-continuous-batching", o->no_continuous_batching, "start sequences only when none runs");
  app->add_flag("--no-candidates", o->no_candidates, "sample from all logits instead of the top candidates");
  app->add_flag("-q,--quiet", o->quiet, "errors only on stderr");
}

void AddGenerateFlags(CLI::App* app, GenerateOptions* o) {
  app->add_option("-n,--n-predict", o->n, "tokens to generate; -1 = to the end of the context");
  app->add_option("--temp", o->sampling.temperature, "temperature; 0 = always the best token");
  app->add_option("--top-k", o->sampling.top_k, "keep the K best tokens; 0 = all");
  app->add_option("--top-p", o->sampling.top_p, "keep the best tokens up to this probability; 1 = all");
  app->add_option("--min-p", o->sampling.min_p, "drop tokens below this share of the best one's; 0 = none");
  app->add_option("--repeat-penalty", o->sampling.repetition_penalty, "1 = none");
  app->add_option("--repeat-last-n", o->sampling.penalty_last_n, "tokens it looks back; -1 = all");
  app->add_option("--frequency-penalty", o->sampling.frequency_penalty, "per occurrence in the generated text");
  app->add_option("--presence-penalty", o->sampling.presence_penalty, "once per token of the generated text");
  app->add_option("-s,--seed", o->seed, "same seed, same text; -1 = a random one");
  app->add_option("--stop", o->stops, "stop before this text (repeatable)");
  app->add_flag("--ignore-eos", o->ignore_eos, "go on after end-of-text tokens");
}

// Every flag is GYRE_<FLAG> in the environment too.
void NameEnvironment(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    std::string name = option->get_lnames().empty() ? "" : option->get_lnames().front();
    if (name.empty() || name == "help" || name == "config") continue;
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    option->envname("GYRE_" + name);
    // Where the words tell the default, its stand-in number would not.
    if (option->get_description().find("(default") == std::string::npos) option->capture_default_str();
  }
}

int Main(int argc, char** argv) {
  CLI::App app{"Gyre runs large language models on the machines you have.\n"};
  app.name("gyre");
  app.require_subcommand(1);
  app.footer(
      "Every flag can stand in a TOML file (--config FILE, a [command] section each) and as GYRE_<FLAG> in the\n"
      "environment. `gyre COMMAND --help` explains a command.");
  app.set_config("--config", "", "read flags from this TOML file")->type_name("FILE");

  RunOptions run;
  CLI::App* run_app = app.add_subcommand("run", "generate text after a prompt, on stdout");
  AddTargetFlags(run_app, &run.ring);
  AddGenerateFlags(run_app, &run.generate);
  auto* prompt = run_app->add_option("-p,--prompt", run.prompt, "the prompt");
  auto* file = run_app->add_option("-f,--file", run.prompt_file, "read the prompt from a file")->excludes(prompt);
  run_app->add_option("--ids", run.ids_file, "token ids from a file, and ids on stdout; needs no tokenizer")
      ->excludes(prompt)
      ->excludes(file);
  run_app->add_flag("--parse-special", run.parse_special, "control tokens in the prompt are recognised");
  run_app->add_flag("--echo", run.echo, "print the prompt before the text");

  ChatOptions chat;
  CLI::App* chat_app = app.add_subcommand("chat", "talk with a model; /help inside");
  AddTargetFlags(chat_app, &chat.ring);
  AddGenerateFlags(chat_app, &chat.generate);
  chat_app->add_option("--system", chat.system, "the system message");
  chat_app->add_option("--format", chat.format, "form of the conversation (default: by the vocabulary)")
      ->check(CLI::IsMember({"plain", "chatml", "llama3", "gemma", "mistral"}));

  LogitsOptions logits;
  logits.ring.kv_type = "f32";
  CLI::App* logits_app = app.add_subcommand("logits", "write float32 logits after each token id to a file");
  AddTargetFlags(logits_app, &logits.ring);
  logits_app->add_option("--ids", logits.ids_file, "token ids, separated by white space")->required();
  logits_app->add_option("--out", logits.out_file, "little-endian float32 [ids][vocabulary]")->required();

  BenchOptions bench;
  bench.ring.no_prefix_cache = false;
  CLI::App* bench_app = app.add_subcommand("bench", "measure prompts and decoding, beside what this machine can do");
  bench_app->add_option("MODEL", bench.models, "GGUF files, folders of safetensors, or llama2.c .bin")
      ->required()
      ->type_name("FILE");
  bench_app->add_option("-p,--prompt", bench.prompt, "tokens of a prompt; 0 = none")->check(CLI::Range(0, 1 << 20));
  bench_app->add_option("-n,--tokens", bench.tokens, "tokens to decode; 0 = none")->check(CLI::Range(0, 1 << 20));
  bench_app->add_option("--streams", bench.streams, "sequences that decode at once, as 1,16")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  bench_app->add_option("--depth", bench.depths, "positions in the KV cache before that, as 0,8192")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24));
  bench_app->add_option("-r,--runs", bench.runs, "runs; medians are taken")->check(CLI::Range(1, 1000));
  bench_app->add_flag("--json", bench.json, "for programs, and for --compare");
  bench_app->add_option("--compare", bench.compare, "ratios to what --json printed before")->type_name("FILE");
  bench_app->add_option("--stages", bench.ring.stages, "cut the model into N stages, a ring in this process")
      ->check(CLI::PositiveNumber);
  AddBinFlags(bench_app, &bench.ring.open);
  AddEngineFlags(bench_app, &bench.ring);

  TokenizeOptions tokenize;
  CLI::App* tokenize_app = app.add_subcommand("tokenize", "text on stdin to token ids on stdout");
  AddOpenFlags(tokenize_app, &tokenize.model, &tokenize.open);
  tokenize_app->add_flag("--add-special", tokenize.add_special, "add BOS/EOS as the model's file asks");
  tokenize_app->add_flag("--parse-special", tokenize.parse_special, "control tokens in the text are recognised");
  tokenize_app->add_flag("--jsonl", tokenize.jsonl, "one {\"text\"} a line in, one {\"ids\"} a line out");

  TemplateOptions chat_template;
  CLI::App* template_app = app.add_subcommand("template", "print a chat template, or render conversations with it");
  auto* template_model = template_app->add_option("MODEL", chat_template.model, "the model whose template it is");
  template_app->add_option("--template", chat_template.file, "a file with a template")
      ->type_name("FILE")
      ->excludes(template_model);
  template_app->add_flag("--jsonl", chat_template.jsonl,
                         "one {\"messages\", ...} a line in, one {\"text\"} or {\"error\"} a line out");

  QuantizeCommandOptions quantize;
  CLI::App* quantize_app = app.add_subcommand("quantize", "write a model file in another type of weights");
  quantize_app->add_option("IN", quantize.in, "GGUF file")->required()->type_name("FILE");
  quantize_app->add_option("OUT", quantize.out, "the file to write")->required()->type_name("FILE");
  quantize_app->add_option("TYPE", quantize.type, "of the weights")
      ->required()
      ->check(CLI::IsMember(QuantizeTypes(), CLI::ignore_case));
  quantize_app->add_option("-t,--threads", quantize.threads, "threads (default: the cores)")
      ->check(CLI::PositiveNumber);
  quantize_app->add_flag("--requantize", quantize.requantize, "weights that are quantized already, too");
  quantize_app->add_flag("-q,--quiet", quantize.quiet, "errors only on stderr");
  quantize_app->add_flag("--force", quantize.force, "overwrite an existing file; the source never is");

  ConvertOptions convert;
  CLI::App* convert_app = app.add_subcommand("convert", "write a folder of safetensors as one GGUF file");
  convert_app->add_option("DIR", convert.folder, "with config.json, *.safetensors and tokenizer.json")
      ->required()
      ->type_name("FOLDER");
  convert_app->add_option("OUT", convert.out, "the file to write")->required()->type_name("FILE");
  convert_app->add_flag("-q,--quiet", convert.quiet, "errors only on stderr");
  convert_app->add_flag("--force", convert.force, "overwrite an existing file; a source never is");

  EstimateOptions estimate;
  CLI::App* estimate_app = app.add_subcommand("estimate", "memory that a model takes, by node");
  AddOpenFlags(estimate_app, &estimate.model, &estimate.open);
  estimate_app->add_option("-c,--ctx", estimate.ctx, "context in tokens (default: what the file says)")
      ->check(CLI::PositiveNumber);
  estimate_app->add_option("--parallel", estimate.parallel, "sequences of the whole context")
      ->check(CLI::PositiveNumber);
  estimate_app->add_option("--kv-type", estimate.kv_type, "type of the KV cache")
      ->check(CLI::IsMember(std::vector<std::string>(kKvTypeNames.begin(), kKvTypeNames.end())));
  estimate_app->add_option("--max-rows", estimate.max_rows, "rows of a step")->check(CLI::PositiveNumber);
  estimate_app->add_option("--nodes", estimate.nodes, "a number of nodes, or what each holds: 16G,8G or NAME=16G,...");
  estimate_app->add_flag("--json", estimate.json, "for programs");

  InspectOptions inspect;
  CLI::App* inspect_app = app.add_subcommand("inspect", "what is in a model file");
  AddOpenFlags(inspect_app, &inspect.model, &inspect.open);
  inspect_app->add_flag("--json", inspect.json, "for programs");
  inspect_app->add_option("--tensor", inspect.tensor, "statistics of one tensor")->type_name("NAME");
  inspect_app->add_flag("--tensors", inspect.tensors, "list every tensor");

  ServeCommandOptions serve;
  serve.version = GYRE_VERSION;
  CLI::App* serve_app = app.add_subcommand("serve", "coordinate a ring of machines: workers join, clients ask");
  AddOpenFlags(serve_app, &serve.ring.model, &serve.ring.open);
  serve_app->add_option("--cluster", serve.serve.cluster, "where workers, operators and clients find it")
      ->required()
      ->type_name("HOST:PORT");
  serve_app->add_option("--ring", serve.serve.ring, "where activations come in (default: the same host, any port)")
      ->type_name("HOST:PORT");
  serve_app->add_option("--advertise", serve.serve.advertise,
                        "the host that workers dial (default: where they joined)");
  serve_app->add_option("--min-workers", serve.serve.min_workers, "workers that the first plan waits for")
      ->check(CLI::PositiveNumber);
  serve_app->add_flag("--no-local", serve.serve.no_local, "never run layers in this process");
  serve_app->add_flag(
      "--bit-equal", serve.serve.bit_equal,
      "refuse workers whose text could differ in a bit: another instruction set, another --wire than f32");
  serve_app->add_flag("--insecure", serve.serve.insecure, "listen beyond loopback without encryption");
  serve_app->add_option("--parallel", serve.ring.parallel, "sequences of the whole context that the KV cache holds (8)")
      ->check(CLI::PositiveNumber);
  AddEngineFlags(serve_app, &serve.ring);

  WorkerCommandOptions worker;
  worker.version = GYRE_VERSION;
  CLI::App* worker_app = app.add_subcommand("worker", "lend this machine to a ring");
  worker_app->add_option("--join", worker.join, "the coordinator's --cluster")->required()->type_name("HOST:PORT");
  worker_app->add_option("--model", worker.model, "the model file here (default: the coordinator's path)")
      ->type_name("FILE");
  worker_app->add_option("--name", worker.name, "its name in the cluster (default: the host's)");
  worker_app
      ->add_option("--listen", worker.listen,
                   "where activations come in (default: the address that reaches the coordinator)")
      ->type_name("HOST:PORT");
  worker_app->add_option("--layers", worker.layers, "wanted in the first plan, as 0-7")->type_name("A-B");
  worker_app->add_option("--memory", worker.memory, "for weights and KV cache, as 8G (default: what is free)")
      ->type_name("SIZE");
  worker_app->add_option("-t,--threads", worker.threads, "threads (default: the cores)")->check(CLI::PositiveNumber);
  AddCpusFlag(worker_app, &worker.cpus);
  worker_app->add_option("--isa", worker.isa, "instruction set of the kernels (default: the best this CPU has)")
      ->check(CLI::IsMember(IsaNames()));
  worker_app
      ->add_option("--wire", worker.wire,
                   "join only where activations travel as this (default: as the coordinator asks)")
      ->check(CLI::IsMember({"f32", "f16", "q8"}));
  worker_app->add_flag("--insecure", worker.insecure, "listen beyond loopback without encryption");
  worker_app->add_flag("-q,--quiet", worker.quiet, "errors only on stderr");
  AddBinFlags(worker_app, &worker.open);

  AdminOptions admin;
  auto admin_command = [&](const char* name, const char* what) {
    CLI::App* command = app.add_subcommand(name, what);
    command->add_option("--cluster", admin.cluster, "the coordinator's --cluster")->required()->type_name("HOST:PORT");
    command->add_flag("--json", admin.json, "for programs");
    return command;
  };
  CLI::App* status_app = admin_command("status", "plan, requests, workers of a cluster");
  CLI::App* layers_app = admin_command("layers", "which worker has which layers");
  CLI::App* resize_app = admin_command("resize", "move layers while the ring serves");
  std::vector<std::string> ranges;
  resize_app
      ->add_option("RANGES", ranges, "[NAME=]A-B,... with both ends inclusive, NAME=- for none; or boundaries: 8 12")
      ->required();
  CLI::App* drain_app = admin_command("drain", "move a worker's layers to the others");
  drain_app->add_option("WORKER", admin.what, "its name")->required();

  LaunchOptions launch;
  launch.self = "/proc/self/exe";
  CLI::App* launch_app =
      app.add_subcommand("launch", "start all processes of a ring, here or over ssh; Ctrl-C ends them");
  launch_app->add_option("RING", launch.file, "as deploy/ring.example.toml")->required()->type_name("FILE");

  CLI::App* version_app = app.add_subcommand("version", "version and instruction set");

  for (CLI::App* command : app.get_subcommands({})) NameEnvironment(command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : kUsage;
  }
  run.has_prompt = prompt->count() > 0;
  for (const auto& [command, ring] :
       {std::pair{run_app, &run.ring}, {chat_app, &chat.ring}, {logits_app, &logits.ring}}) {
    if (!*command || !ring->model.empty() || !ring->cluster.empty()) continue;
    std::fprintf(stderr, "gyre %s: a MODEL file or --cluster HOST:PORT is needed\n", command->get_name().c_str());
    return kUsage;
  }
  for (const std::string& word : ranges) admin.what += (admin.what.empty() ? "" : " ") + word;
  if (*launch_app) {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    if (!error) launch.self = self.string();
  }

  Status status;
  if (*run_app) status = RunCommand(run);
  if (*chat_app) status = ChatCommand(chat);
  if (*logits_app) status = LogitsCommand(logits);
  if (*bench_app) status = BenchCommand(bench);
  if (*tokenize_app) status = TokenizeCommand(tokenize);
  if (*template_app) status = TemplateCommand(chat_template);
  if (*quantize_app) status = QuantizeCommand(quantize);
  if (*convert_app) status = ConvertCommand(convert);
  if (*estimate_app) status = EstimateCommand(estimate);
  if (*inspect_app) status = InspectCommand(inspect);
  if (*serve_app) status = ServeCommand(serve);
  if (*worker_app) status = WorkerCommand(worker);
  if (*status_app) status = StatusCommand(admin);
  if (*layers_app) status = LayersCommand(admin);
  if (*resize_app) status = ResizeCommand(admin);
  if (*drain_app) status = DrainCommand(admin);
  if (*launch_app) status = LaunchCommand(launch);
  if (*version_app) std::printf("gyre %s (%s)\n", GYRE_VERSION, IsaName(DetectIsa()));
  if (status.ok()) return 0;
  std::fprintf(stderr, "gyre: %s\n", Message(status).c_str());
  return kFailed;
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  // Before anything is read, as it may start the program anew: a --config may be a pipe.
  const auto computes = [](std::string_view word) {
    return word == "run" || word == "chat" || word == "logits" || word == "bench" || word == "serve" ||
           word == "worker";
  };
  if (std::any_of(argv + std::min(argc, 1), argv + argc, computes)) gyre::LimitActiveWaiting(argv);
  try {
    return gyre::Main(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gyre: stopped by an unexpected error: %s\n", e.what());
    return 1;
  }
}
