// The flags of run, chat, logits and the benchmarks.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "absl/algorithm/container.h"
#include "cli/add_commands.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "cli/foreign.h"
#include "fmt/core.h"

namespace gyre {
namespace {

// Checks a command that runs a model, here or through a cluster.
Status NeedTarget(const TargetOptions& o) {
  if (!o.model.empty() || !o.cluster.empty() || !o.url.empty()) return absl::OkStatus();
  return UsageError("a MODEL, --cluster HOST:PORT or --url URL is needed");
}

void AddFormatFlag(CLI::App* app, std::string* format) {
  app->add_option("--format", *format, "chat template (default: the model's own, else by its vocabulary)")
      ->check(CLI::IsMember({"plain", "chatml", "llama3", "gemma", "mistral", "rwkv-world"}));
}

void AddWrapFlag(CLI::App* app, bool* no_wrap) {
  app->add_flag("--no-wrap", *no_wrap, "let the terminal break the rows of an answer, also within words");
}

// Generation's flags as a command of their own, for a chat that changes them. The command's action does nothing.
Command GenerateCommand(GenerateOptions* o) {
  return {"chat", "", [o](CLI::App* app) {
            AddGenerateFlags(app, o);
            app->add_flag("-q,--quiet");
            return [] { return absl::OkStatus(); };
          }};
}

// A line for each flag for which `shown` returns true.
std::string FlagLines(const GenerateOptions& o, const std::function<bool(const std::string& name)>& shown) {
  GenerateOptions copy = o;
  CLI::App app;
  AddCommand(GenerateCommand(&copy), &app);
  std::string out;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_lnames()[0];
    if (!shown(name)) continue;
    const std::string value = option->get_default_str();
    if (option->get_expected_max() > 0 && !value.empty() && value != "[]") {
      out += fmt::format("{:<18} {}\n", name, value);
    } else if (name == "ignore-eos") {
      out += fmt::format("{:<18} {}\n", name, o.ignore_eos);
    }
  }
  return out;
}

StatusOr<std::string> SetGenerateFlag(GenerateOptions* o, const std::string& name, const std::string& value) {
  GenerateOptions changed = *o;
  const Command command = GenerateCommand(&changed);
  GYRE_ASSIGN_OR_RETURN(const Translated translated, Translate(command, {"--" + name + "=" + value}));
  if (!translated.notes.empty()) return translated.notes[0] + "\n";
  CLI::App app;
  AddCommand(command, &app);
  changed.stops.clear();
  changed.sampling.logit_bias.clear();
  try {
    app.parse(std::vector<std::string>(translated.words.rbegin(), translated.words.rend()));
  } catch (const CLI::ExtrasError&) {
    std::string names;
    for (const CLI::Option* option : app.get_options()) {
      const std::string flag = option->get_lnames()[0];
      if (flag != "help" && flag != "quiet") names += (names.empty() ? "" : ", ") + flag;
    }
    return InvalidArgument(
        "there is no setting '{}'; expected system, wrap, usage, {}. How the model runs is said when the chat begins, "
        "as --ctx N",
        name, names);
  } catch (const CLI::ParseError& e) {
    return InvalidArgument("{}", e.what());
  }
  if (app.count("--stop") == 0) changed.stops = o->stops;
  if (app.count("--logit-bias") == 0) changed.sampling.logit_bias = o->sampling.logit_bias;
  const std::vector<std::string> given = GivenFlags(app);
  changed.given.insert(changed.given.end(), given.begin(), given.end());
  *o = changed;
  return FlagLines(*o, [&given](const std::string& n) { return absl::c_linear_search(given, n); });
}

std::string ShowGenerateFlags(const GenerateOptions& o) {
  return FlagLines(o, [](const std::string&) { return true; });
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
  app->add_option("--ask,PROMPT", o->asked,
                  "a question, as --chat -p; a model without a chat template of its own continues it")
      ->excludes(prompt)
      ->excludes(file)
      ->excludes(ids)
      ->type_name("TEXT");
  auto* chat =
      app->add_flag("--chat", o->chat, "the prompt is a question: apply the model's chat template")->excludes(ids);
  app->add_option("--system", o->system, "the system message of a question")->excludes(ids);
  AddWrapFlag(app, &o->no_wrap);
  app->add_flag("--parse-special", o->parse_special, "recognize control tokens in the prompt")->excludes(chat);
  app->add_flag("--echo", o->echo, "print the prompt before the text");
  return [o, prompt, app]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedTarget(o->ring));
    o->generate.given = GivenFlags(*app);
    o->has_prompt = prompt->count() > 0;
    const bool asks = o->chat || !o->asked.empty();
    const bool none = !o->has_prompt && o->asked.empty() && o->prompt_file.empty() && o->ids_file.empty();
    const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
    if (none && terminal && !o->echo && !o->parse_special) {
      if (!o->ring.quiet) fmt::print(stderr, "There is no prompt, so this is `gyre chat`; -p TEXT continues a text.\n");
      return ChatCommand({.ring = o->ring,
                          .generate = o->generate,
                          .flags = {SetGenerateFlag, ShowGenerateFlags},
                          .system = o->system,
                          .format = "",
                          .no_wrap = o->no_wrap});
    }
    if (!o->system.empty() && !asks)
      return UsageError("--system needs a question: expected --chat, or PROMPT without -p");
    return RunCommand(*o);
  };
}

Action AddChat(CLI::App* app) {
  auto o = std::make_shared<ChatOptions>();
  o->flags = {SetGenerateFlag, ShowGenerateFlags};
  AddTargetFlags(app, &o->ring, true);
  AddUrlFlags(app, &o->ring);
  AddGenerateFlags(app, &o->generate);
  app->add_option("--system", o->system, "the system message: how the model should answer");
  AddFormatFlag(app, &o->format);
  app->get_option("--format")->excludes("--url");
  AddWrapFlag(app, &o->no_wrap);
  CLI::Option* const tools =
      app->add_option("--tools", o->tools, "a file with tools: programs that the model may call, each after your yes")
          ->type_name("FILE");
  app->add_option("--allow-tool", o->allowed_tools, "run this tool without a question (repeatable)")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->needs(tools);
  app->add_option("--tool-rounds", o->tool_rounds,
                  "number of answers with calls of tools after which the chat waits for you again")
      ->check(Whole(1, 1000))
      ->type_name("N")
      ->needs(tools);
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
  app->add_flag("--force", o->force, "overwrite the --out file if it exists; MODEL and --ids are never overwritten");
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
  app->add_option("-p,--prompt-tokens,--prompt", o->prompt, "number of tokens of the prompt; 0 leaves prompts out")
      ->check(Whole(0, 1 << 20))
      ->type_name("N");
  app->add_option("-n,--tokens", o->tokens, "number of tokens to decode; 0 leaves decoding out")
      ->check(Whole(0, 1 << 20))
      ->type_name("N");
  app->add_option("--streams", o->streams, "numbers of requests that decode at once, as 1,16 (default: 1)")
      ->delimiter(',')
      ->check(Whole(1, 1024))
      ->type_name("LIST")
      ->allow_extra_args(false);
  app->add_option("--depth", o->depths, "numbers of tokens in the KV cache before decoding, as 0,8192 (default: 0)")
      ->delimiter(',')
      ->check(Whole(0, 1 << 24))
      ->type_name("LIST")
      ->allow_extra_args(false);
  app->add_option("-r,--runs", o->runs, "number of runs, of which the median counts")
      ->check(Whole(1, 1000))
      ->type_name("N");
  AddJsonFlag(app, &o->json);
  app->add_option("--compare", o->compare, "print ratios to an earlier run's --json output")->type_name("FILE");
  app->add_option("--stages", o->ring.stages, "cut the model into N stages, a ring in this process")
      ->check(Whole(1))
      ->type_name("N");
  AddOpenFlags(app, &o->ring.open);
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
  app->add_option("--trace-file", o->trace_file, "send the requests of a file that has a JSON object a line")
      ->type_name("FILE")
      ->excludes(workload);
  app->add_option("--requests", o->load.requests, "number of requests in all (default: as many as run at once)")
      ->check(Whole(1, 1000000))
      ->type_name("N");
  app->add_option("--concurrency", o->load.at_once,
                  "number of requests that run at once (default: 1 with --workload single, else 16; with --rate and "
                  "--trace-file "
                  "as many as arrived, up to 1000)")
      ->check(Whole(1, 1000))
      ->type_name("N");
  app->add_option("--rate", o->load.rate,
                  "requests that arrive a second, at random times (Poisson), however many run (default: the next "
                  "starts when one "
                  "ends)")
      ->check(RealNumber(0, 100000, true))
      ->type_name("X");
  app->add_option("--scale", o->load.scale, "factor by which the lengths of prompts and answers are multiplied")
      ->check(RealNumber(0, 1000, true))
      ->type_name("X");
  app->add_option("-s,--seed", o->load.seed,
                  "seed of lengths, words and arrivals: the same one gives the same requests")
      ->check(Whole(0))
      ->type_name("N");
  app->add_flag("--lead", o->load.lead, "let the first request run alone up to its first token");
  app->add_option("--duration", o->duration, "go on with new prompts for so many seconds (default: each request once)")
      ->check(RealNumber(0, 1e6, true))
      ->type_name("SECONDS");
  auto* chat = app->add_flag("--chat", o->chat, "ask /chat/completions instead of /completions");
  auto* ids = app->add_flag("--ids", o->ids, "send prompts as token ids, of exact length, to servers that take them")
                  ->excludes(chat);
  app->add_option("--vocab", o->vocab, "number of tokens in the vocabulary, with --ids (default: as the server says)")
      ->check(Whole(1, 1 << 24))
      ->type_name("N")
      ->needs(ids);
  app->add_option("--idle", o->idle, "number of further connections, which only ask for the list of models every 30 s")
      ->check(Whole(0, 100000))
      ->type_name("N");
  app->add_option("--starvation", o->starvation,
                  "a request starves when it gets no token for so many seconds while others get some")
      ->check(RealNumber(0, 1e6, true))
      ->type_name("SECONDS");
  app->add_option("--timeout", o->timeout, "seconds without a byte after which a request fails")
      ->check(RealNumber(0, 1e6, true))
      ->type_name("SECONDS");
  app->add_option("--pid", o->pid,
                  "the id of the server's process on this machine, to show its memory (default: it is not shown)")
      ->check(Whole(1))
      ->type_name("PID");
  CLI::Option* const svg =
      app->add_option("--svg", o->svg_file, "draw the requests over time into a file")->type_name("FILE");
  app->add_flag("--force", o->force, "overwrite the --svg file if it exists")->needs(svg);
  AddJsonFlag(app, &o->json);
  AddQuietFlag(app, &o->quiet);
  return [o] { return BenchServeCommand(*o); };
}

}  // namespace gyre
