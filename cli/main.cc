// gyre: one binary, a command each for running, asking and looking at models.
#include <CLI/CLI.hpp>

#include <cctype>
#include <cstdio>
#include <string>

#include "base/log.h"
#include "cli/commands.h"
#include "kernels/ops.h"

namespace gyre {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

void AddOpenFlags(CLI::App* app, std::string* model, OpenOptions* o) {
  app->add_option("MODEL", *model, "model file: GGUF, or llama2.c .bin")->required()->type_name("FILE");
  app->add_option("--tokenizer", o->tokenizer_path, ".bin models: the tokenizer.bin (default: tok*.bin beside it)");
  app->add_option("--rope-base", o->rope_base, ".bin models: rotary base (default 10000; 500000 for Llama 3)");
  app->add_option("--norm-eps", o->norm_eps, ".bin models: epsilon of the norms (default 1e-5)");
}

void AddRingFlags(CLI::App* app, RingOptions* o) {
  AddOpenFlags(app, &o->model, &o->open);
  const auto* positive = &CLI::PositiveNumber;
  app->add_option("--stages", o->stages, "cut the model into N stages, a ring in this process")->check(*positive);
  app->add_option("-t,--threads", o->threads, "threads over all stages (default: the cores)")->check(*positive);
  app->add_option("-c,--ctx", o->ctx, "context in tokens (default: what the file says)")->check(*positive);
  app->add_option("--kv-tokens", o->kv_tokens, "tokens of KV cache (default: the context)")->check(*positive);
  app->add_option("--kv-type", o->kv_type, "type of the KV cache")->check(CLI::IsMember({"f16", "f32"}));
  app->add_option("--block-size", o->block_size, "KV positions a block")->check(CLI::Range(1, 256));
  app->add_option("--chunk", o->chunk, "prompt tokens of one sequence a step")->check(*positive);
  app->add_option("--max-rows", o->max_rows, "rows of a step")->check(*positive);
  app->add_option("--isa", o->isa, "instruction set of the kernels (default: the best this CPU has)")
      ->check(CLI::IsMember({"ref", "avx2", "avx512", "avx512vnni"}));
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
    option->envname("GYRE_" + name)->capture_default_str();
  }
}

int Main(int argc, char** argv) {
  CLI::App app{"Gyre runs large language models on the machines you have.\n"};
  app.name("gyre");
  app.require_subcommand(1);
  app.footer("Every flag can stand in a TOML file (--config FILE, a [command] section each) and as GYRE_<FLAG> in the\n"
             "environment. `gyre COMMAND --help` explains a command.");
  app.set_config("--config", "", "read flags from this TOML file")->type_name("FILE");

  RunOptions run;
  CLI::App* run_app = app.add_subcommand("run", "generate text after a prompt, on stdout");
  AddRingFlags(run_app, &run.ring);
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
  AddRingFlags(chat_app, &chat.ring);
  AddGenerateFlags(chat_app, &chat.generate);
  chat_app->add_option("--system", chat.system, "the system message");
  chat_app->add_option("--format", chat.format, "form of the conversation (default: by the vocabulary)")
      ->check(CLI::IsMember({"plain", "chatml", "llama3", "gemma", "mistral"}));

  LogitsOptions logits;
  logits.ring.kv_type = "f32";
  CLI::App* logits_app = app.add_subcommand("logits", "write float32 logits after each token id to a file");
  AddRingFlags(logits_app, &logits.ring);
  logits_app->add_option("--ids", logits.ids_file, "token ids, separated by white space")->required();
  logits_app->add_option("--out", logits.out_file, "little-endian float32 [ids][vocabulary]")->required();

  TokenizeOptions tokenize;
  CLI::App* tokenize_app = app.add_subcommand("tokenize", "text on stdin to token ids on stdout");
  AddOpenFlags(tokenize_app, &tokenize.model, &tokenize.open);
  tokenize_app->add_flag("--add-special", tokenize.add_special, "add BOS/EOS as the model's file asks");
  tokenize_app->add_flag("--parse-special", tokenize.parse_special, "control tokens in the text are recognised");
  tokenize_app->add_flag("--jsonl", tokenize.jsonl, "one {\"text\"} a line in, one {\"ids\"} a line out");

  InspectOptions inspect;
  CLI::App* inspect_app = app.add_subcommand("inspect", "what is in a model file");
  AddOpenFlags(inspect_app, &inspect.model, &inspect.open);
  inspect_app->add_flag("--json", inspect.json, "for programs");
  inspect_app->add_flag("--tensors", inspect.tensors, "list every tensor");

  CLI::App* version_app = app.add_subcommand("version", "version and instruction set");

  for (CLI::App* command : app.get_subcommands({})) NameEnvironment(command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : kUsage;
  }
  run.has_prompt = prompt->count() > 0;

  Status status;
  if (*run_app) status = RunCommand(run);
  if (*chat_app) status = ChatCommand(chat);
  if (*logits_app) status = LogitsCommand(logits);
  if (*tokenize_app) status = TokenizeCommand(tokenize);
  if (*inspect_app) status = InspectCommand(inspect);
  if (*version_app) std::printf("gyre %s (%s)\n", GYRE_VERSION, IsaName(DetectIsa()));
  if (status.ok()) return 0;
  std::fprintf(stderr, "gyre: %s\n", Message(status).c_str());
  return kFailed;
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  try {
    return gyre::Main(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gyre: stopped by an unexpected error: %s\n", e.what());
    return 1;
  }
}
