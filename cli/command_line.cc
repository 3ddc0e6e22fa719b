// The flags of serve, worker, launch and of help, and the table of all commands.
#include "cli/command_line.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/add_commands.h"
#include "cli/describe.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "identity/join_token.h"

namespace gyre {
namespace {

void AddLogFlags(CLI::App* app, LogOptions* o) {
  app->add_option("--log-file", o->file, "where the log goes (default: stderr); SIGHUP opens the file anew")
      ->type_name("FILE");
  app->add_option("--log-format", o->format, "the log's lines: text, or json with a field for each thing that is known")
      ->check(CLI::IsMember({"text", "json"}));
}

void AddHttpServerFlags(CLI::App* app, ServeCommandOptions* options) {
  HttpOptions* const o = &options->http;
  app->add_option(
         "--http", o->address,
         fmt::format("where HTTP is answered and the page is shown; off: nowhere (default: {}; with --cluster the "
                     "next free port if another program has this one)",
                     kHttpAddress))
      ->type_name("HOST:PORT");
  app->add_option("--alias", o->aliases, "a further name of the model in the API (repeatable)")
      ->allow_extra_args(false)
      ->check(NotEmpty())
      ->type_name("NAME");
  app->add_option("--other-names", o->other_names,
                  "which other names of a model in a request mean this one: none, hosted (those of models that only "
                  "their makers serve, as gpt-4o and claude-...), or any")
      ->check(CLI::IsMember({"none", "hosted", "any"}));
  app->add_option("--api-keys", o->api_keys, "who may ask over HTTP: a file with lines NAME KEY [user|admin]")
      ->type_name("FILE");
  app->add_option("--tls-cert", o->tls_cert, "HTTP over TLS: the certificate chain in PEM")->type_name("FILE");
  app->add_option("--tls-key", o->tls_key, "HTTP over TLS: the certificate's private key in PEM")->type_name("FILE");
  app->add_option("--allow-host", o->allow_hosts,
                  "a further name under which clients reach this server; others are refused (repeatable)")
      ->allow_extra_args(false)
      ->type_name("HOST");
  app->add_option("--cors", o->cors, "let web pages from this address ask, as https://example.org (repeatable)")
      ->allow_extra_args(false)
      ->type_name("ORIGIN");
  app->add_option("--batches", o->batches,
                  "keep files and batches of OpenAI's API in this folder, and go on with them at the next start")
      ->type_name("FOLDER");
  app->add_option("--max-body", options->max_body, "maximum size of a request's body, as 8M")
      ->check(Size())
      ->type_name("SIZE");
  app->add_option("--http-connections", o->connections, "maximum number of HTTP connections at once")
      ->check(Whole(1, 1000000))
      ->type_name("N");
  app->add_option("--drain-timeout", o->drain_seconds,
                  "seconds that running requests get to end at a shutdown, by SIGTERM or Ctrl-C")
      ->check(Whole(0, 86400))
      ->type_name("S");
  app->add_flag("--metrics-open", o->metrics_open, "let anyone read /metrics");
  app->add_flag("--keep-changing-lines", options->ring.keep_changing_lines,
                "leave lines of the system prompt that some clients change in every request as they are");
  app->add_flag("--no-reasoning-split", o->no_reasoning_split,
                "leave what a reasoning model thinks, and the markers around it, in the content");
}

CLI::Option* AddWeightsRateFlag(CLI::App* app, std::string* rate) {
  return app
      ->add_option("--weights-rate", *rate,
                   "weights go to workers without the model's file with at most SIZE a second, as 50M (default: no "
                   "limit)")
      ->check(Size())
      ->type_name("SIZE");
}

Action AddServe(CLI::App* app) {
  auto o = std::make_shared<ServeCommandOptions>();
  o->version = GYRE_VERSION;
  o->ring.parallel = kServeParallel;
  AddModelFlags(app, &o->ring.model, &o->source);
  AddOpenFlags(app, &o->ring.open);
  CLI::Option* const cluster =
      app->add_option("--cluster", o->serve.cluster,
                      "listen at this address for workers, operators and clients (default: there is no cluster)")
          ->type_name("HOST:PORT");
  app->add_option("--ring", o->serve.ring, "where activations arrive (default: the host of --cluster, any free port)")
      ->needs(cluster)
      ->check(Address())
      ->type_name("HOST:PORT");
  app->add_option("--advertise", o->serve.advertise,
                  "the host that workers connect to for activations (default: the one they joined at)")
      ->needs(cluster)
      ->check(Host())
      ->type_name("HOST");
  app->add_option("--min-workers", o->serve.min_workers,
                  "number of workers that the first plan waits for; until then this process runs all layers")
      ->needs(cluster)
      ->check(Whole(1, 100000))
      ->type_name("N");
  app->add_option("--layers", o->layers,
                  "layers that this process runs beside workers, as 0-7 (default: a share like a worker's)")
      ->needs(cluster)
      ->type_name("A-B");
  app->add_option("--memory", o->memory, "memory for layers in this process, as 8G (default: what is free)")
      ->needs(cluster)
      ->check(Size())
      ->type_name("SIZE");
  app->add_option(
         "--rebalance", o->serve.rebalance,
         "what happens when measured speeds show a faster plan: layers move (auto), or `gyre status` and the page "
         "propose it (ask); off looks for none")
      ->check(CLI::IsMember({"auto", "ask", "off"}));
  app->add_flag("--no-local", o->serve.no_local, "run no layers in this process: the workers have them all")
      ->needs(cluster);
  app->add_flag(
         "--bit-equal", o->serve.bit_equal,
         "refuse workers whose text could differ in a bit: another instruction set or version, another --wire than "
         "f32")
      ->needs(cluster);
  app->add_flag("--replicate-kv", o->serve.replicate_kv,
                "keep a copy of each worker's full KV pages on another worker: after a loss only the rest is replayed")
      ->needs(cluster);
  AddTransportFlag(app, &o->serve.transport)->needs(cluster);
  CLI::Option* const state =
      app->add_option(
             "--state", o->state,
             "keep in this folder what a restart must not lose: requests go on, and workers keep their weights "
             "(default: a restart loses both)")
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
  app->add_option("--etcd-ca", o->etcd_ca, "certificates by which etcd's own is checked, with etcds://")
      ->needs(standby)
      ->type_name("FILE");
  app->add_option("--etcd-cert", o->etcd_cert, "the certificate that proves to etcd who asks")
      ->needs(standby)
      ->type_name("FILE");
  app->add_option("--etcd-key", o->etcd_key, "the private key of --etcd-cert")->needs(standby)->type_name("FILE");
  app->add_option("--resume-timeout", o->resume_seconds,
                  "seconds for which a request whose client is gone can be reattached, with --state or --standby")
      ->check(Whole(1, 86400))
      ->type_name("S");
  AddWeightsRateFlag(app, &o->weights_rate)->needs(cluster);
  AddHttpServerFlags(app, o.get());
  AddLogFlags(app, &o->log);
  CLI::Option* const trace =
      app->add_option("--trace", o->trace,
                      "at the end, write the last steps and requests for Perfetto (Chrome trace JSON)")
          ->type_name("FILE");
  app->add_flag("--force", o->force, "overwrite the --trace file if it exists")->needs(trace);
  AddIdentityFlag(app, &o->identity, Role::kCoordinator)->needs(cluster);
  app->add_option("--cluster-ca", o->cluster_ca,
                  "the folder of the cluster's CA: workers join with its tokens, and its revocations count at once")
      ->needs("--identity")
      ->type_name("FOLDER");
  app->add_flag("--no-discovery", o->no_discovery,
                "don't answer workers that look for a coordinator on the local network")
      ->needs(cluster);
  AddInsecureFlag(app, &o->insecure);
  const size_t before = app->get_options().size();
  app->add_option("--parallel", o->ring.parallel, "number of requests with the whole context that the KV cache holds")
      ->check(Whole(1, 100000))
      ->type_name("N");
  AddEngineFlags(app, &o->ring);
  AddSchedulerFlags(app, &o->ring);
  AddContextShiftFlags(app, &o->ring);
  std::vector<CLI::Option*> engine = app->get_options();
  engine.erase(engine.begin(), engine.begin() + static_cast<std::ptrdiff_t>(before));
  AddQuietFlag(app, &o->ring.quiet);
  return [o, engine]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->ring.model));
    for (const CLI::Option* flag : engine) {
      if (flag->count() > 0) o->flags.emplace_back(flag->get_lnames()[0], flag->results().back());
    }
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
  auto* drafts =
      app->add_option("--drafts", o->drafts,
                      "have no layers, and guess tokens for the coordinator's texts with this small model of the "
                      "same vocabulary, a path or a name")
          ->type_name("FILE");
  app->add_option(
         "--weights", o->weights,
         "where weights come from: a file here, the ring (fetch), or a file if it is here, else the ring (auto)")
      ->check(CLI::IsMember({"auto", "file", "fetch"}));
  AddWeightsRateFlag(app, &o->weights_rate);
  app->add_option("--name", o->name, "the worker's name in the cluster (default: the host's name)")
      ->check(OwnersName());
  app->add_option("--listen", o->listen, "where activations arrive (default: the address that reaches the coordinator)")
      ->check(Address())
      ->type_name("HOST:PORT");
  app->add_option("--layers", o->layers,
                  "layers that this worker wants in the first plan, as 0-7 (default: as the plan says)")
      ->type_name("A-B");
  app->add_option("--memory", o->memory, "memory for weights and KV cache, as 8G (default: what is free)")
      ->check(Size())
      ->type_name("SIZE");
  AddDeviceFlags(app, &o->device, &o->device_memory, &o->no_graphs, &o->threads, &o->cpus, &o->isa);
  app->add_option("--wire", o->wire,
                  "join only where activations travel in this format (default: as the coordinator asks)")
      ->check(CLI::IsMember({"f32", "f16", "q8"}));
  AddTransportFlag(app, &o->transport);
  AddIdentityFlag(app, &o->identity, Role::kWorker);
  app->add_option("--token", o->token,
                  "a token by `gyre ca token`: get an identity with it, if the folder has none yet (default folder: "
                  "~/.config/gyre/NAME, where later starts find it)")
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
                  "seconds for which weights and KV cache are kept when a coordinator with --state is gone")
      ->check(Whole(1, 86400))
      ->type_name("S");
  AddLogFlags(app, &o->log);
  AddQuietFlag(app, &o->quiet);
  AddOpenFlags(app, &o->open);
  AddYesFlag(app, &o->source);
  AddSourceFlags(app, &o->source, "--hub-token");
  app->get_option("--cache")->description(
      "the folder for models that were pulled and weights that are fetched (default: ~/.cache/gyre)");
  app->get_option("--cache-limit")
      ->description(
          "weights that are fetched take at most SIZE, as 100G; those that nobody uses go first. A pull does likewise "
          "with models (default: none)");
  AddHubCaFlag(app, &o->source);
  for (const char* of_layers : {"--model", "--weights", "--weights-rate", "--listen", "--layers", "--memory", "--wire",
                                "--transport", "--drain-timeout", "--orphan-timeout"})
    drafts->excludes(app->get_option(of_layers));
  return [o] { return WorkerCommand(*o); };
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

Action AddDevices(CLI::App* app) {
  auto o = std::make_shared<DevicesOptions>();
  AddJsonFlag(app, &o->json);
  AddCacheFlag(app, &o->source);
  return [o] { return DevicesCommand(*o); };
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
      {"run", "continue a prompt, or answer one question with --chat", AddRun,
       "gyre run model.gguf \"What is a ring?\" --temp 0"},
      {"chat", "talk with a model", AddChat, "gyre chat model.gguf --system \"Answer in one sentence.\""},
      {"serve", "answer clients over HTTP, alone or as the coordinator of a ring of machines", AddServe,
       "gyre serve model.gguf --cluster 192.0.2.1:7070 --min-workers 2 --insecure"},
      {"worker", "lend this machine to a ring", AddWorker, "gyre worker --join 192.0.2.1:7070 --memory 8G --insecure"},
      {"launch", "start all processes of a ring, here or over ssh; Ctrl-C ends them", AddLaunch,
       "gyre launch ring.toml"},
      {"status", "show a cluster's plan, requests and workers", AddStatus, "gyre status --cluster 192.0.2.1:7070"},
      {"layers", "show which worker has which layers", AddLayers, "gyre layers --cluster 192.0.2.1:7070 --why"},
      {"resize", "move layers between workers while the ring serves", AddResize,
       "gyre resize --cluster 192.0.2.1:7070 w1=0-9,w2=10-15 --dry-run"},
      {"drain", "move a worker's layers to the other workers; it gets none until it is undrained", AddDrain,
       "gyre drain w1 --cluster 192.0.2.1:7070"},
      {"undrain", "let a drained worker have layers again", AddUndrain, "gyre undrain w1 --cluster 192.0.2.1:7070"},
      {"remove", "move a worker's layers to the others and end its process", AddRemove,
       "gyre remove w1 --cluster 192.0.2.1:7070"},
      {"ca init", "make the CA of a cluster, for TLS between its machines", AddCaInit, "gyre ca init ca --name home"},
      {"ca issue", "write an identity: a private key and its certificate", AddCaIssue,
       "gyre ca issue ca --role worker --name w1 --out w1-identity"},
      {"ca revoke", "revoke the certificates of a name", AddCaRevoke, "gyre ca revoke ca w1"},
      {"ca token", "print a token with which one worker gets its certificate", AddCaToken,
       "gyre ca token ca --name w1 --ttl 30m"},
      {"pull", "get a model by its name from a hub, or from a URL", AddPull, "gyre pull ORG/REPO:Q4_K_M"},
      {"models", "list the models that were pulled", AddModels, "gyre models --json"},
      {"models rm", "remove a model that was pulled", AddModelsRemove, "gyre models rm ORG/REPO:Q4_K_M"},
      {"estimate", "show the memory that a model needs, by node", AddEstimate,
       "gyre estimate model.gguf --ctx 8192 --nodes laptop=8G,desktop=16G"},
      {"devices", "show what a model can be computed on: processors and GPUs", AddDevices, "gyre devices --json"},
      {"inspect", "show what is in a model file", AddInspect, "gyre inspect model.gguf --tensors"},
      {"bench", "measure the speed of prompts and of decoding, beside this machine's measured limits", AddBench,
       "gyre bench model.gguf --streams 1,16 --depth 0,4096"},
      {"bench serve", "measure an OpenAI-compatible server under load", AddBenchServe,
       "gyre bench serve http://127.0.0.1:8080 --workload mixed --rate 2 --requests 100"},
      {"quantize", "write a model file with smaller weights", AddQuantize,
       "gyre quantize model-f16.gguf model-q4.gguf Q4_K_M"},
      {"imatrix", "write how much each column of a model's weights matters for a text", AddImatrix,
       "gyre imatrix model-f16.gguf text.txt -o model.imatrix"},
      {"convert", "write a folder of safetensors as one GGUF file", AddConvert, "gyre convert folder model.gguf"},
      {"export", "write a model's tensors as .npy files or as safetensors", AddExport,
       "gyre export model.gguf --tensors 'blk\\.0\\.' --out layer0.safetensors"},
      {"tokenize", "turn text on stdin into token ids on stdout", AddTokenize,
       "echo 'a text' | gyre tokenize model.gguf"},
      {"grammar check", "tell whether texts obey a JSON Schema, a regular expression or a grammar", AddGrammarCheck,
       "echo '{\"a\": 1}' | gyre grammar check --schema schema.json"},
      {"template", "print a chat template, or fill it with conversations", AddTemplate, "gyre template model.gguf"},
      {"parse-answer", "show what a client gets of a recorded answer: content, reasoning, calls of tools",
       AddParseAnswer, "gyre parse-answer --template model.gguf --jsonl <answers.jsonl"},
      {"logits", "write the float32 logits after each token id to a file", AddLogits,
       "gyre logits model.gguf --ids ids.txt --out logits.f32"},
      {"perplexity", "measure what a model loses on a text, and compare runs", AddPerplexity,
       "gyre perplexity model.gguf text.txt --save run.npy"},
      {"eval", "ask a benchmark's questions: multiple choice and free answers", AddEval,
       "gyre eval model.gguf questions.jsonl"},
      {"batch", "send a file of OpenAI requests to a server; goes on where it was stopped", AddBatch,
       "gyre batch requests.jsonl -o answers.jsonl --url http://127.0.0.1:8080"},
      {"diff", "tell where two models part, layer by layer, or one model under two settings", AddDiff,
       "gyre diff model-f16.gguf model-q4.gguf --text \"The tide comes in.\""},
      {"certify", "compare a model's logits with those of another program", AddCertify,
       "gyre certify folder --reference reference.safetensors"},
      {"completion", "print the completion script of a shell: bash, zsh or fish", AddCompletion,
       "source <(gyre completion bash)"},
      {"help", "explain a command, or list all commands", AddHelp, "gyre help run"},
      {"version", "show the version, the instruction set, and whether GPUs are built in", AddVersion, "gyre version"},
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
