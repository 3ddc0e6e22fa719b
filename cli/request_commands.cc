// The flags of run, chat, logits and the benchmarks.
#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "cli/add_commands.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"

namespace gyre {
namespace {

// Checks a command that runs a model, here or through a cluster.
Status NeedTarget(const TargetOptions& o) {
  if (!o.model.empty() || !o.cluster.empty() || !o.url.empty()) return absl::OkStatus();
  return UsageError("a MODEL, --cluster HOST:PORT or --url URL is needed");
}

void AddFormatFlag(CLI::App* app, std::string* format) {
  app->add_option("--format", *format, "chat template (default: the model's own, else by its vocabulary)")
      ->check(CLI::IsMember({"plain", "chatml", "llama3", "gemma", "mistral"}));
}

}  // namespace

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

}  // namespace gyre
