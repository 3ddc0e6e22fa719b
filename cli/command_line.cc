// Each command's flags, and the table of all commands.
#include "cli/command_line.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/describe.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "identity/join_token.h"
#include "kernels/isa.h"
#include "model/quantize.h"

namespace gyre {
namespace {

using Action = std::function<Status()>;

// Checks a command that runs a model, here or through a cluster.
Status NeedTarget(const TargetOptions& o) {
  if (!o.model.empty() || !o.cluster.empty() || !o.url.empty()) return absl::OkStatus();
  return UsageError("a MODEL, --cluster HOST:PORT or --url URL is needed");
}

Status NeedModel(const std::string& model) {
  return model.empty() ? UsageError(
                             "a MODEL is needed: a GGUF file, a folder of safetensors, a llama2.c .bin file, or a name "
                             "as ORG/REPO:QUANT")
                       : absl::OkStatus();
}

// Replaces a model's name by its path.
Status Locate(SourceOptions source, bool quiet, std::string* model) {
  source.quiet = quiet;
  GYRE_ASSIGN_OR_RETURN(*model, LocateModel(*model, source));
  return absl::OkStatus();
}

void AddJsonFlag(CLI::App* app, bool* json) { app->add_flag("--json", *json, "output for programs"); }

void AddFormatFlag(CLI::App* app, std::string* format) {
  app->add_option("--format", *format, "chat template (default: the model's own, else by its vocabulary)")
      ->check(CLI::IsMember({"plain", "chatml", "llama3", "gemma", "mistral"}));
}

Action AddRun(CLI::App* app) {
  auto o = std::make_shared<RunOptions>();
  AddTargetFlags(app, &o->ring, true);
  AddUrlFlags(app, &o->ring);
  AddGenerateFlags(app, &o->generate);
  auto* prompt = app->add_option("-p,--prompt", o->prompt, "the prompt; - reads it from stdin (default: stdin)");
  auto* file =
      app->add_option("-f,--file", o->prompt_file, "read the prompt from a file")->type_name("FILE")->excludes(prompt);
  auto* ids = app->add_option("--ids", o->ids_file, "read token ids from a file, print ids; needs no tokenizer")
                  ->type_name("FILE")
                  ->excludes(prompt)
                  ->excludes(file);
  auto* chat =
      app->add_flag("--chat", o->chat, "the prompt is a question: apply the model's chat template")->excludes(ids);
  app->add_option("--system", o->system, "the system message of --chat")->needs(chat);
  app->add_flag("--parse-special", o->parse_special, "recognize control tokens in the prompt")->excludes(chat);
  app->add_flag("--echo", o->echo, "print the prompt before the text");
  return [o, prompt, app]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedTarget(o->ring));
    o->generate.given = GivenFlags(*app);
    o->has_prompt = prompt->count() > 0;
    return RunCommand(*o);
  };
}

Action AddChat(CLI::App* app) {
  auto o = std::make_shared<ChatOptions>();
  AddTargetFlags(app, &o->ring, true);
  AddUrlFlags(app, &o->ring);
  AddGenerateFlags(app, &o->generate);
  app->add_option("--system", o->system, "the system message: how the model should answer");
  AddFormatFlag(app, &o->format);
  app->get_option("--format")->excludes("--url");
  return [o, app]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedTarget(o->ring));
    o->generate.given = GivenFlags(*app);
    return ChatCommand(*o);
  };
}

Action AddLogits(CLI::App* app) {
  auto o = std::make_shared<LogitsOptions>();
  o->ring.kv_type = "f32";
  AddTargetFlags(app, &o->ring, false);
  AddHubCaFlag(app, &o->ring.source);
  app->add_option("--ids", o->ids_file, "token ids, separated by white space")->required()->type_name("FILE");
  app->add_option("--out", o->out_file, "the file to write: little-endian float32 [ids][vocabulary]")
      ->required()
      ->type_name("FILE");
  return [o]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedTarget(o->ring));
    return LogitsCommand(*o);
  };
}

Action AddBench(CLI::App* app) {
  auto o = std::make_shared<BenchOptions>();
  app->add_option("-m,--model,MODEL", o->models,
                  "GGUF files, folders of safetensors, llama2.c .bin files, or names as ORG/REPO:QUANT")
      ->type_name("FILE");
  AddYesFlag(app, &o->source);
  AddSourceFlags(app, &o->source);
  AddHubCaFlag(app, &o->source);
  // --prompt is the text of other commands, so the environment has GYRE_PROMPT_TOKENS for this flag.
  app->add_option("-p,--prompt-tokens,--prompt", o->prompt, "tokens of the prompt; 0 leaves prompts out")
      ->check(Whole(0, 1 << 20))
      ->type_name("N");
  app->add_option("-n,--tokens", o->tokens, "tokens to decode; 0 leaves decoding out")
      ->check(Whole(0, 1 << 20))
      ->type_name("N");
  app->add_option("--streams", o->streams, "requests that decode at once, as 1,16")
      ->delimiter(',')
      ->check(Whole(1, 1024))
      ->type_name("LIST")
      ->allow_extra_args(false);
  app->add_option("--depth", o->depths, "tokens in the KV cache before decoding, as 0,8192")
      ->delimiter(',')
      ->check(Whole(0, 1 << 24))
      ->type_name("LIST")
      ->allow_extra_args(false);
  app->add_option("-r,--runs", o->runs, "runs, of which the median counts")->check(Whole(1, 1000))->type_name("N");
  AddJsonFlag(app, &o->json);
  app->add_option("--compare", o->compare, "print ratios to an earlier run's --json output")->type_name("FILE");
  app->add_option("--stages", o->ring.stages, "cut the model into N stages, a ring in this process")
      ->check(Whole(1))
      ->type_name("N");
  AddBinFlags(app, &o->ring.open);
  AddEngineFlags(app, &o->ring);
  AddSchedulerFlags(app, &o->ring);
  AddQuietFlag(app, &o->ring.quiet);
  app->get_option("--ctx")->description("context of a request in tokens (default: what the longest run needs)");
  app->get_option("--kv-tokens")->description("tokens that the KV cache holds (default: what all streams need)");
  return [o]() -> Status {
    if (o->models.empty()) return NeedModel("");
    for (std::string& model : o->models) GYRE_RETURN_IF_ERROR(Locate(o->source, o->ring.quiet, &model));
    return BenchCommand(*o);
  };
}

Action AddBenchServe(CLI::App* app) {
  auto o = std::make_shared<BenchServeOptions>();
  o->version = GYRE_VERSION;
  app->add_option("--url,URL", o->url, "an OpenAI-compatible server, as http://127.0.0.1:8080")->required();
  AddHttpClientFlags(app, &o->api_key, &o->ca_file, &o->model_id);
  auto* workload =
      app->add_option(
             "--workload", o->load.workload,
             "single: prompts of 256 tokens and answers of 256, one after the other; mixed: 32 to 1024 and 64 to 256; "
             "prefix: 1024 that all share, 32 of their own, and 64")
          ->check(CLI::IsMember({"single", "mixed", "prefix"}));
  app->add_option("--trace-file", o->trace_file, "replay requests from a file with a JSON object a line")
      ->type_name("FILE")
      ->excludes(workload);
  app->add_option("--requests", o->load.requests, "requests in all (default: as many as run at once)")
      ->check(Whole(1, 1000000))
      ->type_name("N");
  app->add_option(
         "--concurrency", o->load.at_once,
         "requests that run at once (default: 1, 16 or 16 by workload; at most 1000 where they arrive by --rate or "
         "--trace-file)")
      ->check(Whole(1, 1000))
      ->type_name("N");
  app->add_option("--rate", o->load.rate,
                  "Poisson arrivals a second, whatever runs (default: the next starts when one ends)")
      ->check(Number(0, 100000, true))
      ->type_name("X");
  app->add_option("--scale", o->load.scale, "multiplies the lengths of prompts and answers")
      ->check(Number(0, 1000, true))
      ->type_name("X");
  app->add_option("-s,--seed", o->load.seed, "the same seed gives the same requests")->check(Whole(0))->type_name("N");
  app->add_flag("--lead", o->load.lead, "the first request runs alone up to its first token");
  app->add_option("--duration", o->duration, "go on with new prompts for so many seconds (default: each request once)")
      ->check(Number(0, 1e6, true))
      ->type_name("SECONDS");
  auto* chat = app->add_flag("--chat", o->chat, "ask /chat/completions instead of /completions");
  auto* ids = app->add_flag("--ids", o->ids, "prompts are token ids of exact length, for servers that take them")
                  ->excludes(chat);
  app->add_option("--vocab", o->vocab, "tokens of the vocabulary, with --ids (default: ask the server)")
      ->check(Whole(1, 1 << 24))
      ->type_name("N")
      ->needs(ids);
  app->add_option("--idle", o->idle, "connections beside that ask only for the list of models, every 30 s")
      ->check(Whole(0, 100000))
      ->type_name("N");
  app->add_option("--starvation", o->starvation,
                  "seconds without a token, while others get some, that count as starvation")
      ->check(Number(0, 1e6, true))
      ->type_name("SECONDS");
  app->add_option("--timeout", o->timeout, "seconds without a byte after which a request fails")
      ->check(Number(0, 1e6, true))
      ->type_name("SECONDS");
  app->add_option("--pid", o->pid, "the server's process on this machine, whose memory is shown")
      ->check(Whole(1))
      ->type_name("PID");
  app->add_option("--svg", o->svg_file, "draw the requests over time into a file")->type_name("FILE");
  AddJsonFlag(app, &o->json);
  AddQuietFlag(app, &o->quiet);
  return [o] { return BenchServeCommand(*o); };
}

Action AddTokenize(CLI::App* app) {
  auto o = std::make_shared<TokenizeOptions>();
  auto source = std::make_shared<SourceOptions>();
  AddModelFlags(app, &o->model, source.get());
  AddBinFlags(app, &o->open);
  app->add_flag("--add-special", o->add_special, "add the begin and end tokens that the model's file asks for");
  app->add_flag("--parse-special", o->parse_special, "recognize control tokens in the text");
  app->add_flag("--jsonl", o->jsonl, "read one {\"text\"} per line, write one {\"ids\"} per line");
  return [o, source]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->model));
    GYRE_RETURN_IF_ERROR(Locate(*source, false, &o->model));
    return TokenizeCommand(*o);
  };
}

Action AddTemplate(CLI::App* app) {
  auto o = std::make_shared<TemplateOptions>();
  auto source = std::make_shared<SourceOptions>();
  AddModelFlags(app, &o->model, source.get());
  app->add_option("--template", o->file, "a file with a chat template, instead of a MODEL")
      ->type_name("FILE")
      ->excludes(app->get_option("--model"));
  app->add_flag("--jsonl", o->jsonl,
                "read one {\"messages\", ...} per line, write one {\"text\"} or {\"error\"} per line");
  return [o, source]() -> Status {
    if (o->model.empty() && o->file.empty()) return UsageError("a MODEL or --template FILE is needed");
    GYRE_RETURN_IF_ERROR(Locate(*source, false, &o->model));
    return TemplateCommand(*o);
  };
}

Action AddQuantize(CLI::App* app) {
  auto o = std::make_shared<QuantizeCommandOptions>();
  app->add_option("IN", o->in, "a GGUF file, or a folder of safetensors, which is converted first")
      ->required()
      ->type_name("FILE");
  app->add_option("OUT", o->out, "the file to write")->required()->type_name("FILE");
  app->add_option("TYPE", o->type, "type of the new weights")
      ->required()
      ->check(CLI::IsMember(QuantizeTypes(), CLI::ignore_case));
  app->add_option("-t,--threads", o->threads, "threads (default: one per core)")->check(Whole(1, 4096))->type_name("N");
  app->add_flag("--requantize", o->requantize, "also read weights that are quantized (lost quality stays lost)");
  AddQuietFlag(app, &o->quiet);
  app->add_flag("--force", o->force, "overwrite OUT if it exists; IN itself is never overwritten");
  return [o] { return QuantizeCommand(*o); };
}

Action AddConvert(CLI::App* app) {
  auto o = std::make_shared<ConvertOptions>();
  app->add_option("DIR", o->folder, "the folder, with config.json, *.safetensors and tokenizer.json")
      ->required()
      ->type_name("FOLDER");
  app->add_option("OUT", o->out, "the file to write")->required()->type_name("FILE");
  AddQuietFlag(app, &o->quiet);
  app->add_flag("--force", o->force, "overwrite OUT if it exists; a file of DIR is never overwritten");
  return [o] { return ConvertCommand(*o); };
}

Action AddEstimate(CLI::App* app) {
  auto o = std::make_shared<EstimateOptions>();
  AddModelFlag(app, &o->model);
  AddSourceFlags(app, &o->source);
  AddHubCaFlag(app, &o->source);
  AddBinFlags(app, &o->open);
  AddContextFlag(app, &o->ctx);
  auto* parallel =
      app->add_option("--parallel", o->parallel,
                      "requests with the whole context that the KV cache holds (default: 1 as `gyre run`, 8 with "
                      "--nodes as `gyre serve`)")
          ->check(Whole(1))
          ->type_name("N");
  AddKvTypeFlag(app, &o->kv_type);
  AddMaxRowsFlag(app, &o->max_rows);
  auto* nodes = app->add_option("--nodes", o->nodes,
                                "how many nodes share the layers, or the memory of each: 16G,8G or NAME=16G,NAME=8G")
                    ->type_name("NODES");
  AddJsonFlag(app, &o->json);
  return [o, parallel, nodes]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->model));
    if (parallel->count() == 0 && nodes->count() > 0) o->parallel = kServeParallel;
    return EstimateCommand(*o);
  };
}

Action AddInspect(CLI::App* app) {
  auto o = std::make_shared<InspectOptions>();
  auto source = std::make_shared<SourceOptions>();
  AddModelFlags(app, &o->model, source.get());
  AddBinFlags(app, &o->open);
  AddJsonFlag(app, &o->json);
  app->add_option("--tensor", o->tensor, "statistics of one tensor")->type_name("NAME");
  app->add_flag("--tensors", o->tensors, "list all tensors");
  return [o, source]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->model));
    GYRE_RETURN_IF_ERROR(Locate(*source, false, &o->model));
    return InspectCommand(*o);
  };
}

void AddLogFlags(CLI::App* app, LogOptions* o) {
  app->add_option("--log-file", o->file, "where the log goes (default: stderr); SIGHUP opens the file anew")
      ->type_name("FILE");
  app->add_option("--log-format", o->format, "the log's lines: text, or json with a field for each thing that is known")
      ->check(CLI::IsMember({"text", "json"}));
}

void AddHttpServerFlags(CLI::App* app, ServeCommandOptions* options) {
  HttpOptions* const o = &options->http;
  app->add_option("--http", o->address,
                  fmt::format("where HTTP is answered (default: {}; with --cluster: nowhere)", kHttpAddress))
      ->type_name("HOST:PORT");
  app->add_option("--alias", o->aliases, "a further name of the model (repeatable)")
      ->allow_extra_args(false)
      ->type_name("NAME");
  app->add_option("--api-keys", o->api_keys, "who may ask over HTTP: a file with lines NAME KEY [user|admin]")
      ->type_name("FILE");
  app->add_option("--tls-cert", o->tls_cert, "HTTP over TLS: the certificate chain in PEM")->type_name("FILE");
  app->add_option("--tls-key", o->tls_key, "HTTP over TLS: the certificate's private key in PEM")->type_name("FILE");
  app->add_option("--allow-host", o->allow_hosts, "a name under which clients reach this server (repeatable)")
      ->allow_extra_args(false)
      ->type_name("HOST");
  app->add_option("--cors", o->cors, "another server's pages may ask, as https://example.org (repeatable)")
      ->allow_extra_args(false)
      ->type_name("ORIGIN");
  app->add_option("--max-body", options->max_body, "maximum size of a request's body")->type_name("SIZE");
  app->add_option("--http-connections", o->connections, "maximum HTTP connections at once")
      ->check(Whole(1, 1000000))
      ->type_name("N");
  app->add_option("--drain-timeout", o->drain_seconds,
                  "seconds that running requests get to end at a shutdown, by SIGTERM or Ctrl-C")
      ->check(Whole(0, 86400))
      ->type_name("S");
  app->add_flag("--metrics-open", o->metrics_open, "anyone may read /metrics");
  app->add_flag("--no-reasoning-split", o->no_reasoning_split,
                "what a reasoning model thinks, and the markers around it, stay in the content");
}

CLI::Option* AddWeightsRateFlag(CLI::App* app, std::string* rate) {
  return app
      ->add_option("--weights-rate", *rate,
                   "weights go to workers without the model's file with at most SIZE a second, as 50M (default: no "
                   "limit)")
      ->type_name("SIZE");
}

Action AddServe(CLI::App* app) {
  auto o = std::make_shared<ServeCommandOptions>();
  o->version = GYRE_VERSION;
  o->ring.parallel = kServeParallel;
  AddModelFlags(app, &o->ring.model, &o->source);
  AddBinFlags(app, &o->ring.open);
  CLI::Option* const cluster =
      app->add_option("--cluster", o->serve.cluster, "the address where workers, operators and other clients find it")
          ->type_name("HOST:PORT");
  app->add_option("--ring", o->serve.ring, "where activations arrive (default: the host of --cluster, any free port)")
      ->needs(cluster)
      ->type_name("HOST:PORT");
  app->add_option("--advertise", o->serve.advertise,
                  "the host that workers connect to for activations (default: the one they joined at)")
      ->needs(cluster)
      ->type_name("HOST");
  app->add_option("--min-workers", o->serve.min_workers,
                  "workers that the first plan waits for; until then this process runs all layers")
      ->needs(cluster)
      ->check(Whole(1, 100000))
      ->type_name("N");
  app->add_option("--layers", o->layers,
                  "layers that this process runs beside workers, as 0-7 (default: a share like a worker's)")
      ->needs(cluster)
      ->type_name("A-B");
  app->add_option("--memory", o->memory, "memory for layers in this process, as 8G (default: what is free)")
      ->needs(cluster)
      ->type_name("SIZE");
  app->add_option("--rebalance", o->serve.rebalance,
                  "a plan that would be faster by what was measured of the machines is made (auto), proposed by `gyre "
                  "status` and the page (ask), or not looked for (off)")
      ->check(CLI::IsMember({"auto", "ask", "off"}));
  app->add_flag("--no-local", o->serve.no_local, "run no layers in this process: the workers have them all")
      ->needs(cluster);
  app->add_flag("--bit-equal", o->serve.bit_equal,
                "refuse workers whose text could differ in a bit: another instruction set, another --wire than f32")
      ->needs(cluster);
  AddTransportFlag(app, &o->serve.transport)->needs(cluster);
  CLI::Option* const state =
      app->add_option(
             "--state", o->state,
             "keep what a restart must not lose in this folder: requests go on, and workers keep their weights")
          ->type_name("FOLDER");
  CLI::Option* const standby =
      app->add_option("--standby", o->standby,
                      "lead, or stand by for the coordinator that leads; the state is in this etcd, below NAME "
                      "(default: gyre)")
          ->needs(cluster)
          ->excludes(state)
          ->type_name("etcd://HOST:PORT[,...][/NAME]");
  app->add_option("--lease", o->lease_seconds, "seconds after which a leader that is gone may be replaced")
      ->needs(standby)
      ->check(Whole(2, 3600))
      ->type_name("S");
  app->add_option("--etcd-ca", o->etcd_ca, "certificates that etcd's is checked against, with etcds://")
      ->needs(standby)
      ->type_name("FILE");
  app->add_option("--etcd-cert", o->etcd_cert, "the certificate that etcd is shown")->needs(standby)->type_name("FILE");
  app->add_option("--etcd-key", o->etcd_key, "its key")->needs(standby)->type_name("FILE");
  app->add_option("--resume-timeout", o->resume_seconds,
                  "seconds for which a request whose client is gone can be taken up again, with --state or --standby")
      ->check(Whole(1, 86400))
      ->type_name("S");
  AddWeightsRateFlag(app, &o->weights_rate)->needs(cluster);
  AddHttpServerFlags(app, o.get());
  AddLogFlags(app, &o->log);
  app->add_option("--trace", o->trace, "at the end, write the last steps and requests for Perfetto (Chrome trace JSON)")
      ->type_name("FILE");
  AddIdentityFlag(app, &o->identity)->needs(cluster);
  app->add_option("--cluster-ca", o->cluster_ca,
                  "the folder of the cluster's CA: workers join with its tokens, and its revocations count at once")
      ->needs("--identity")
      ->type_name("FOLDER");
  app->add_flag("--no-discovery", o->no_discovery,
                "don't answer workers that look for a coordinator on the local network")
      ->needs(cluster);
  AddInsecureFlag(app, &o->insecure);
  app->add_option("--parallel", o->ring.parallel, "requests with the whole context that the KV cache holds")
      ->check(Whole(1, 100000))
      ->type_name("N");
  AddEngineFlags(app, &o->ring);
  AddSchedulerFlags(app, &o->ring);
  AddContextShiftFlags(app, &o->ring);
  AddQuietFlag(app, &o->ring.quiet);
  return [o]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->ring.model));
    return ServeCommand(*o);
  };
}

Action AddWorker(CLI::App* app) {
  auto o = std::make_shared<WorkerCommandOptions>();
  o->version = GYRE_VERSION;
  app->add_option(
         "--join", o->join,
         "the coordinator's address: its --cluster, or those of all that may lead (default: found on the local "
         "network, with --token, --identity or --insecure)")
      ->check(Addresses())
      ->type_name("HOST:PORT,...");
  app->add_option(
         "-m,--model", o->model,
         "the model on this machine, a path or a name (default: the coordinator's path, else the same model in the "
         "cache)")
      ->type_name("FILE");
  app->add_option(
         "--weights", o->weights,
         "where weights come from: a file here, the ring (fetch), or a file if it is here, else the ring (auto)")
      ->check(CLI::IsMember({"auto", "file", "fetch"}));
  AddWeightsRateFlag(app, &o->weights_rate);
  app->add_option("--name", o->name, "the worker's name in the cluster (default: the host's name)");
  app->add_option("--listen", o->listen, "where activations arrive (default: the address that reaches the coordinator)")
      ->type_name("HOST:PORT");
  app->add_option("--layers", o->layers, "layers that it wants in the first plan, as 0-7")->type_name("A-B");
  app->add_option("--memory", o->memory, "memory for weights and KV cache, as 8G (default: what is free)")
      ->type_name("SIZE");
  AddDeviceFlags(app, &o->device, &o->threads, &o->cpus, &o->isa);
  app->add_option("--wire", o->wire,
                  "join only where activations travel in this format (default: as the coordinator asks)")
      ->check(CLI::IsMember({"f32", "f16", "q8"}));
  AddTransportFlag(app, &o->transport);
  AddIdentityFlag(app, &o->identity);
  app->add_option("--token", o->token,
                  "a token by `gyre ca token`: get an identity with it, if the folder has none yet")
      ->check([](const std::string& text) {
        const auto token = ParseToken(text);
        return token.ok() ? std::string() : Message(token.status());
      })
      ->type_name("TOKEN");
  AddInsecureFlag(app, &o->insecure);
  app->add_option("--drain-timeout", o->drain_seconds,
                  "seconds that the other workers get to take its layers, at SIGTERM")
      ->check(Whole(0, 86400))
      ->type_name("S");
  app->add_option("--orphan-timeout", o->orphan_seconds,
                  "seconds for which weights and KV cache are kept when the coordinator is gone that has a --state")
      ->check(Whole(1, 86400))
      ->type_name("S");
  AddLogFlags(app, &o->log);
  AddQuietFlag(app, &o->quiet);
  AddBinFlags(app, &o->open);
  AddYesFlag(app, &o->source);
  AddSourceFlags(app, &o->source, "--hub-token");
  app->get_option("--cache")->description(
      "the folder of models with a name and of weights that are fetched (default: ~/.cache/gyre)");
  app->get_option("--cache-limit")
      ->description(
          "weights that are fetched take at most SIZE, as 100G; those that nobody uses go first. A pull does likewise "
          "with models (default: none)");
  AddHubCaFlag(app, &o->source);
  return [o] { return WorkerCommand(*o); };
}

std::shared_ptr<AdminOptions> AddAdminFlags(CLI::App* app) {
  auto o = std::make_shared<AdminOptions>();
  app->add_option("--cluster", o->cluster, "the coordinator's address, or those of all that may lead")
      ->required()
      ->check(Addresses())
      ->type_name("HOST:PORT,...");
  AddIdentityFlag(app, &o->identity);
  AddJsonFlag(app, &o->json);
  return o;
}

Action AddStatus(CLI::App* app) {
  return [o = AddAdminFlags(app)] { return StatusCommand(*o); };
}

Action AddLayers(CLI::App* app) {
  auto o = AddAdminFlags(app);
  app->add_flag("--why", o->why, "say for each member why it has the layers that it has, or none, with the numbers");
  return [o] { return LayersCommand(*o); };
}

void AddDryRunFlag(CLI::App* app, bool* dry_run) {
  app->add_flag("--dry-run", *dry_run, "only show what moves and what memory it takes, or why it is refused");
}

Action AddResize(CLI::App* app) {
  auto o = AddAdminFlags(app);
  auto ranges = std::make_shared<std::vector<std::string>>();
  app->add_option("RANGES", *ranges,
                  "[NAME=]A-B,... with both ends included, NAME=- for none; or the boundaries alone: 8 12");
  app->add_flag("--proposed", o->proposed, "the plan that `gyre status` proposes");
  AddDryRunFlag(app, &o->dry_run);
  return [o, ranges] {
    if (ranges->empty() != o->proposed) return UsageError("RANGES or --proposed: expected one of the two");
    for (const std::string& word : *ranges) o->what += (o->what.empty() ? "" : " ") + word;
    return ResizeCommand(*o);
  };
}

Action AddDrain(CLI::App* app) {
  auto o = AddAdminFlags(app);
  app->add_option("WORKER", o->what, "the worker's name")->required();
  AddDryRunFlag(app, &o->dry_run);
  return [o] { return DrainCommand(*o); };
}

Action AddUndrain(CLI::App* app) {
  auto o = AddAdminFlags(app);
  app->add_option("WORKER", o->what, "the worker's name")->required();
  return [o] { return UndrainCommand(*o); };
}

std::shared_ptr<CaOptions> AddCaFlags(CLI::App* app) {
  auto o = std::make_shared<CaOptions>();
  app->add_option("FOLDER", o->folder, "the CA's folder")->required();
  return o;
}

void AddKeyFlags(CLI::App* app, CaOptions* o) {
  app->add_option("--key-type", o->key_type, "the kind of the private key")->check(CLI::IsMember({"p256", "ed25519"}));
  app->add_option("--days", o->days, "how long the certificate is valid")->check(Whole(1, 36500))->type_name("N");
}

Action AddCaInit(CLI::App* app) {
  auto o = AddCaFlags(app);
  o->days = 3650;
  app->add_option("--name", o->cluster, "the cluster's name, which stands in every certificate");
  AddKeyFlags(app, o.get());
  AddQuietFlag(app, &o->quiet);
  return [o] { return CaInitCommand(*o); };
}

Action AddCaIssue(CLI::App* app) {
  auto o = AddCaFlags(app);
  app->add_option("--role", o->role, "what its owner may do")
      ->required()
      ->check(CLI::IsMember({"coordinator", "worker", "client", "admin"}));
  app->add_option("--name", o->name, "who its owner is; a worker has this name in the cluster")->required();
  app->add_option("-o,--out", o->out, "the folder to write the identity to")->required()->type_name("FOLDER");
  AddKeyFlags(app, o.get());
  app->add_flag("--renew", o->renew, "the name keeps its other certificates, and its identity in --out is replaced");
  AddQuietFlag(app, &o->quiet);
  return [o] { return CaIssueCommand(*o); };
}

Action AddCaRevoke(CLI::App* app) {
  auto o = AddCaFlags(app);
  app->add_option("NAME", o->name, "whose certificates end")->required();
  app->add_option("--role", o->role, "only those of this role")
      ->check(CLI::IsMember({"coordinator", "worker", "client", "admin"}));
  AddQuietFlag(app, &o->quiet);
  return [o] { return CaRevokeCommand(*o); };
}

Action AddCaToken(CLI::App* app) {
  auto o = AddCaFlags(app);
  app->add_option("--ttl", o->ttl, "how long it can be used, as 30m, 1h or 7d")->type_name("TIME");
  app->add_option("--name", o->name, "the only worker's name that it is for (default: any that is free)");
  return [o] { return CaTokenCommand(*o); };
}

Action AddRemove(CLI::App* app) {
  auto o = AddAdminFlags(app);
  app->add_option("WORKER", o->what, "the worker's name")->required();
  return [o] { return RemoveCommand(*o); };
}

Action AddLaunch(CLI::App* app) {
  auto o = std::make_shared<LaunchOptions>();
  app->add_option("RING", o->file, "a file as deploy/ring.example.toml")->required()->type_name("FILE");
  return [o] {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    o->self = error ? "/proc/self/exe" : self.string();
    return LaunchCommand(*o);
  };
}

Action AddPull(CLI::App* app) {
  auto o = std::make_shared<PullCommandOptions>();
  app->add_option("NAME", o->model, "ORG/REPO, ORG/REPO:QUANT, ORG/REPO:QUANT@REVISION, or a URL")->required();
  AddSourceFlags(app, &o->source);
  AddHubCaFlag(app, &o->source);
  AddQuietFlag(app, &o->source.quiet);
  return [o] { return PullCommand(*o); };
}

Action AddModels(CLI::App* app) {
  auto o = std::make_shared<ModelsOptions>();
  AddCacheFlag(app, &o->source);
  AddJsonFlag(app, &o->json);
  return [o] { return ModelsCommand(*o); };
}

Action AddModelsRemove(CLI::App* app) {
  auto o = std::make_shared<ModelsOptions>();
  app->add_option("NAME", o->model, "a model as `gyre models` lists it")->required();
  app->add_flag("--all", o->all, "every quantization and version that the name means");
  AddCacheFlag(app, &o->source);
  AddQuietFlag(app, &o->source.quiet);
  return [o] { return ModelsRemoveCommand(*o); };
}

Action AddCompletion(CLI::App* app) {
  auto shell = std::make_shared<std::string>();
  app->add_option("SHELL", *shell, "the shell")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [shell] {
    const std::string script = CompletionScript(*shell);
    std::fwrite(script.data(), 1, script.size(), stdout);
    return absl::OkStatus();
  };
}

Action AddHelp(CLI::App* app) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto man = std::make_shared<bool>(false);
  app->add_option("COMMAND", *words, "the command to explain");
  app->add_flag("--man", *man, "print a manual page, for `man -l`");
  return [words, man]() -> Status {
    std::string name;
    for (const std::string& word : *words) name += (name.empty() ? "" : " ") + word;
    GYRE_ASSIGN_OR_RETURN(const std::string text, *man ? StatusOr<std::string>(ManualPage()) : HelpText(name));
    std::fwrite(text.data(), 1, text.size(), stdout);
    return absl::OkStatus();
  };
}

Action AddVersion(CLI::App*) {
  return [] {
    std::printf("%s\n", VersionText().c_str());
    return absl::OkStatus();
  };
}

}  // namespace

const std::vector<Command>& Commands() {
  static const std::vector<Command> kCommands{
      {"run", "continue a prompt, or answer one question with --chat", AddRun},
      {"chat", "talk with a model", AddChat},
      {"serve", "answer clients over HTTP, alone or as the coordinator of a ring of machines", AddServe},
      {"worker", "lend this machine to a ring", AddWorker},
      {"launch", "start all processes of a ring, here or over ssh; Ctrl-C ends them", AddLaunch},
      {"status", "show a cluster's plan, requests and workers", AddStatus},
      {"layers", "show which worker has which layers", AddLayers},
      {"resize", "move layers between workers while the ring serves", AddResize},
      {"drain", "move a worker's layers to the other workers; it gets none until it is undrained", AddDrain},
      {"undrain", "let a drained worker have layers again", AddUndrain},
      {"remove", "move a worker's layers to the others and end its process", AddRemove},
      {"ca init", "make the CA of a cluster, for TLS between its machines", AddCaInit},
      {"ca issue", "write an identity: a private key and its certificate", AddCaIssue},
      {"ca revoke", "revoke the certificates of a name", AddCaRevoke},
      {"ca token", "print a token with which one worker gets its certificate", AddCaToken},
      {"pull", "get a model by its name from a hub, or from a URL", AddPull},
      {"models", "list the models that were pulled", AddModels},
      {"models rm", "remove a model that was pulled", AddModelsRemove},
      {"estimate", "show the memory that a model needs, by node", AddEstimate},
      {"inspect", "show what is in a model file", AddInspect},
      {"bench", "measure the speed of prompts and of decoding, beside this machine's measured limits", AddBench},
      {"bench serve", "measure an OpenAI-compatible server under load", AddBenchServe},
      {"quantize", "write a model file with smaller weights", AddQuantize},
      {"convert", "write a folder of safetensors as one GGUF file", AddConvert},
      {"tokenize", "turn text on stdin into token ids on stdout", AddTokenize},
      {"template", "print a chat template, or fill it with conversations", AddTemplate},
      {"logits", "write the float32 logits after each token id to a file", AddLogits},
      {"completion", "print the completion script of a shell: bash, zsh or fish", AddCompletion},
      {"help", "explain a command, or list all commands", AddHelp},
      {"version", "show the version and the instruction set", AddVersion},
  };
  return kCommands;
}

const Command* FindCommand(const std::string& name) {
  for (const Command& command : Commands()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

std::vector<std::string> CommandNames() {
  std::vector<std::string> names;
  for (const Command& command : Commands()) names.push_back(command.name);
  return names;
}

Action AddCommand(const Command& command, CLI::App* app) {
  Action action = command.add(app);
  for (CLI::Option* option : app->get_options()) {
    // If the description names the default, the stand-in value is not shown as well.
    if (option->get_expected_max() > 0 && option->get_description().find("(default") == std::string::npos) {
      option->capture_default_str();
    }
  }
  return action;
}

}  // namespace gyre
