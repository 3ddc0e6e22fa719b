// Flags that several commands share.
#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/step_codec.h"
#include "base/transport.h"
#include "cli/add_commands.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "cli/session.h"
#include "coordinator/engine/sampling_options.h"
#include "coordinator/engine/scheduler_types.h"
#include "coordinator/engine/speculation.h"
#include "coordinator/engine/steps_in_flight.h"
#include "fmt/core.h"
#include "identity/identity.h"
#include "kernels/isa.h"

namespace gyre {
namespace {

// Parses "ID=VALUE"; VALUE may be -inf.
std::pair<TokenId, float> ParseBias(const std::string& text) {
  const char* const end = text.data() + text.size();
  TokenId id = 0;
  float value = 0;
  const auto [equals, id_error] = std::from_chars(text.data(), end, id);
  if (id_error == std::errc() && id >= 0 && equals != end && *equals == '=') {
    const auto [rest, error] = std::from_chars(equals + 1, end, value);
    const bool banned = value == -std::numeric_limits<float>::infinity();
    if (error == std::errc() && rest == end && (banned || (value >= -1e6f && value <= 1e6f))) return {id, value};
  }
  throw CLI::ValidationError("--logit-bias", "'" + text + "', expected ID=VALUE, as 15=-2.5 or 15=-inf");
}

void AddSamplingFlag(CLI::App* app, const SamplingOption& option, SamplingParams* params) {
  const bool whole = std::holds_alternative<int SamplingParams::*>(option.field);
  const auto add = [&](auto field) {
    return app->add_option(fmt::format("--{}", option.flag), params->*field, std::string(option.help));
  };
  std::visit(add, option.field)
      ->check(whole ? Whole(static_cast<int64_t>(option.least))
                    : RealNumber(option.least, option.most, option.above_least))
      ->type_name(std::string(option.flag_value));
}

}  // namespace

std::vector<std::string> IsaNames() {
  std::vector<std::string> names;
  for (Isa isa : NamedIsas()) names.emplace_back(IsaName(isa));
  return names;
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

void AddJsonFlag(CLI::App* app, bool* json) { app->add_flag("--json", *json, "print JSON, for programs"); }

void AddModelFlag(CLI::App* app, std::string* model) {
  app->add_option("-m,--model,MODEL", *model,
                  "a GGUF file, a folder of safetensors, a llama2.c .bin file, or a name as ORG/REPO:QUANT or a URL")
      ->type_name("FILE");
}

void AddCacheFlag(CLI::App* app, SourceOptions* o) {
  app->add_option("--cache", o->cache, "the folder for models that were pulled (default: ~/.cache/gyre)")
      ->type_name("FOLDER");
}

void AddHubCaFlag(CLI::App* app, SourceOptions* o) {
  app->add_option("--ca", o->hub.ca_file, "certificates in PEM form that are trusted beside the system's")
      ->type_name("FILE");
}

void AddYesFlag(CLI::App* app, SourceOptions* o) {
  app->add_flag("-y,--yes,--pull", o->yes, "pull a model that is named and not on this machine, without a question");
}

void AddSourceFlags(CLI::App* app, SourceOptions* o, const char* token) {
  AddCacheFlag(app, o);
  app->add_option("--cache-limit", o->cache_limit,
                  "a pull removes the models that were unused for the longest time, until all take at most SIZE, as "
                  "100G (default: no limit)")
      ->check(Size())
      ->type_name("SIZE");
  app->add_option("--endpoint", o->hub.endpoint,
                  "the hub where names are looked up (default: HF_ENDPOINT, else https://huggingface.co)")
      ->check(HttpUrl())
      ->type_name("URL");
  app->add_option(token, o->hub.token, "the token for the hub (default: HF_TOKEN, else the hub's token file)")
      ->type_name("TOKEN");
}

void AddModelFlags(CLI::App* app, std::string* model, SourceOptions* source) {
  AddModelFlag(app, model);
  AddYesFlag(app, source);
  AddSourceFlags(app, source);
  AddHubCaFlag(app, source);
}

void AddBinFlags(CLI::App* app, OpenOptions* o) {
  app->add_option("--tokenizer", o->tokenizer_path, ".bin models: the tokenizer.bin (default: tok*.bin beside it)")
      ->type_name("FILE");
  app->add_option("--rope-base", o->rope_base,
                  ".bin models: base of the rotary embedding (default 10000; 500000 for Llama 3)")
      ->check(RealNumber(0, 1e12, true))
      ->type_name("X");
  app->add_option("--norm-eps", o->norm_eps, ".bin models: epsilon of the norms (default 1e-5)")
      ->check(RealNumber(0, 1, true))
      ->type_name("X");
}

static void AddLoraFlag(CLI::App* app, OpenOptions* o) {
  app->add_option_function<std::vector<std::string>>(
         "--lora",
         [o](const std::vector<std::string>& given) {
           o->adapters.clear();
           for (const std::string& text : given) {
             const size_t equals = text.find('=');
             const bool named = equals != std::string::npos && text.find('/') > equals;
             AdapterFile file{.name = named ? text.substr(0, equals) : "",
                              .path = named ? text.substr(equals + 1) : text};
             while (file.path.size() > 1 && file.path.ends_with('/')) file.path.pop_back();
             const std::filesystem::path path(file.path);
             if (!named) file.name = (path.extension() == ".gguf" ? path.stem() : path.filename()).string();
             const bool printable = std::ranges::all_of(file.name, [](char c) { return c > ' ' && c <= '~'; });
             if (file.path.empty() || file.name.empty() || !printable)
               throw CLI::ValidationError("--lora",
                                          text + ": expected FILE or NAME=FILE, with a name of printable ASCII");
             for (const AdapterFile& other : o->adapters) {
               if (other.name == file.name)
                 throw CLI::ValidationError("--lora", "two adapters have the name " + file.name);
             }
             o->adapters.push_back(std::move(file));
           }
         },
         "a LoRA adapter of the model: a GGUF file or a folder of PEFT, and the name that requests call it by "
         "(default: the file's) (repeatable)")
      ->allow_extra_args(false)
      ->type_name("[NAME=]FILE");
}

void AddOpenFlags(CLI::App* app, OpenOptions* o) {
  AddBinFlags(app, o);
  app->add_option("--quantization", o->quantization,
                  "refuse a model whose weights are not quantized so, as Q4_K_M or fp8 (default: any)")
      ->type_name("NAME");
  AddLoraFlag(app, o);
}

void AddContextFlag(CLI::App* app, uint32_t* ctx) {
  app->add_option(
         "-c,--ctx", *ctx,
         "context of a request in tokens, prompt and generated text together (default: what the model's file says)")
      ->check(Whole(1, std::numeric_limits<int32_t>::max()))
      ->type_name("N");
}

void AddKvTypeFlag(CLI::App* app, std::string* kv_type) {
  app->add_option("--kv-type", *kv_type, "number format of the KV cache's values")
      ->check(CLI::IsMember(std::vector<std::string>(kKvTypeNames.begin(), kKvTypeNames.end())));
}

void AddMaxRowsFlag(CLI::App* app, uint32_t* max_rows) {
  app->add_option("--max-rows", *max_rows, "maximum number of tokens per step, over all requests")
      ->check(Whole(1, kMaxStepRows))
      ->type_name("N");
}

void AddDeviceFlags(CLI::App* app, std::string* device, uint64_t* device_memory, bool* no_graphs, int* threads,
                    std::string* cpus, std::string* isa) {
  app->add_option("--device", *device,
                  "the device that computes: cpu, cuda:N for a GPU, or auto, which is the first GPU that can be used, "
                  "else the processors; `gyre devices` lists them (default: auto)")
      ->type_name("NAME");
  app->add_option_function<std::string>(
         "--device-memory", [device_memory](const std::string& text) { *device_memory = ParseSize(text).value_or(0); },
         "memory of a GPU to reserve for weights, KV cache and buffers, as 20G (default: nine tenths of what is free "
         "there)")
      ->check(Size())
      ->type_name("SIZE");
  app->add_flag("--no-graphs", *no_graphs, "on a GPU, launch each kernel of a step by itself; the text stays the same");
  AddThreadsFlag(app, threads, "number of threads that compute, over all stages");
  app->add_option("--cpus", *cpus,
                  "processors that these threads stay on, as 0-3,8 (default: the system moves them; with several NUMA "
                  "nodes each thread stays on a core)")
      ->type_name("LIST");
  app->add_option("--isa", *isa, "instruction set of the kernels (default: the best that this processor has)")
      ->check(CLI::IsMember(IsaNames()));
}

CLI::Option* AddIdentityFlag(CLI::App* app, std::string* identity, std::optional<Role> role) {
  return app
      ->add_option("--identity", *identity,
                   "the folder with this side's identity for TLS in the cluster, as `gyre ca issue` writes it")
      ->check(CLI::Validator(
          [role](std::string& folder) -> std::string {
            // A folder that can't be read is an error where it is opened, with the reason.
            const StatusOr<Principal> owner = OwnerOf(folder);
            if (!role || !owner.ok() || owner->role == *role) return "";
            return fmt::format("{}: it is the identity of {}, expected one of the role {}", folder, Describe(*owner),
                               RoleName(*role));
          },
          ""))
      ->type_name("FOLDER");
}

void AddInsecureFlag(CLI::App* app, std::string* insecure) {
  app->add_flag(
      "--insecure", *insecure,
      "allow ports beyond loopback without TLS: those that --insecure=cluster,ring,http names, or all of them");
}

void AddThreadsFlag(CLI::App* app, int* threads, const std::string& what) {
  app->add_option("-t,--threads", *threads, what + " (default: one per core)")->check(Whole(1, 4096))->type_name("N");
}

void AddQuietFlag(CLI::App* app, bool* quiet) { app->add_flag("-q,--quiet", *quiet, "only errors on stderr"); }

void AddHttpClientFlags(CLI::App* app, std::string* api_key, std::string* ca_file, std::string* model_id) {
  app->add_option("--api-key", *api_key,
                  "the key that the server asks for (default: OPENAI_API_KEY of the environment)")
      ->type_name("KEY");
  app->add_option("--ca", *ca_file, "certificates in PEM form that are trusted beside the system's")->type_name("FILE");
  app->add_option("--model-id", *model_id, "the model to ask for (default: the first that the server lists)")
      ->type_name("NAME");
}

void AddEngineFlags(CLI::App* app, RuntimeOptions* o) {
  AddDeviceFlags(app, &o->device, &o->device_memory, &o->no_graphs, &o->threads, &o->cpus, &o->isa);
  AddContextFlag(app, &o->ctx);
  app->add_option("--kv-tokens", o->kv_tokens,
                  fmt::format("tokens that the KV cache holds (default: {}, in at most half of the free memory)",
                              o->parallel > 1 ? "--parallel times the context" : "the context"))
      ->check(Whole(1))
      ->type_name("N");
  AddKvTypeFlag(app, &o->kv_type);
  app->add_option("--block-size", o->block_size, "number of tokens in a block of the KV cache")
      ->check(Whole(1, 256))
      ->type_name("N");
  app->add_option("--chunk", o->chunk, "maximum number of prompt tokens that one request has in a step")
      ->check(Whole(1, kMaxStepRows))
      ->type_name("N");
  AddMaxRowsFlag(app, &o->max_rows);
  app->add_option("--wire", o->wire, "activation format between stages; f16 and q8 round, so the text may differ")
      ->check(CLI::IsMember({"f32", "f16", "q8"}));
  app->add_flag("--exact", o->exact,
                "keep activations in f32 where weights are quantized or tiles multiply, which is slower");
  app->add_flag("--no-prefix-cache", o->no_prefix_cache,
                "compute every prompt from its beginning, also where another one began with the same text");
  app->add_flag("--no-chunked-prefill", o->no_chunked_prefill, "compute each prompt in one step");
  app->add_flag("--no-continuous-batching", o->no_continuous_batching, "start requests only when none is running");
  app->add_option(
         "--speculation", o->speculation,
         "guess the next tokens and compute their rows in one step, where that is faster; ngram guesses from "
         "the text itself, draft a draft model, mtp a layer of the model's file for it; auto takes all that there "
         "are. The text is the same")
      ->check(CLI::IsMember(std::vector<std::string>(kSpeculationNames.begin(), kSpeculationNames.end())));
  app->add_option("--draft-model", o->draft_model,
                  "a small model with the same vocabulary, which guesses the next tokens in this process")
      ->type_name("FILE");
  app->add_option("--draft-tokens", o->draft_tokens,
                  "guesses of a draft model, or of the model's layer for them, in a step at most")
      ->check(Whole(1, kMostDrafts))
      ->type_name("N");
  app->add_flag("--no-candidates", o->no_candidates, "sample from all logits instead of the best candidates");
}

CLI::Option* AddTransportFlag(CLI::App* app, std::string* transport) {
  return app
      ->add_option(
          "--transport", *transport,
          "what carries activations: shm is memory that processes of one host share, udp stands loss better than "
          "tcp, kernel is TCP through io_uring; auto takes shm where it can and tcp elsewhere; every other choice "
          "fails "
          "where it is not possible")
      ->check(CLI::IsMember(TransportPreferences()));
}

void AddSchedulerFlags(CLI::App* app, ComputeOptions* o) {
  app->add_option(
         "--policy", o->policy,
         "who gets a step's tokens first: fcfs takes requests by priority and age, prefill_first takes prompts, "
         "decode_round_robin takes requests that generate text, in turn")
      ->check(CLI::IsMember(std::vector<std::string>(kPolicyNames.begin(), kPolicyNames.end())));
  app->add_option(
         "--step-tokens", o->step_tokens,
         "maximum prompt tokens per step while other requests generate text (default: as many as let such a step "
         "take 1.7 times as long as one without)")
      ->check(Whole(1, kMaxStepRows))
      ->type_name("N");
  app->add_option("--steps-in-flight", o->steps_in_flight,
                  "steps that go round the ring at once (default: as many as keep its slowest stage busy, by the times "
                  "that are measured; more where latency is high)")
      ->check(Whole(1, StepsInFlight::kMost))
      ->type_name("N");
  app->add_option(
         "--max-sequences", o->max_sequences,
         "maximum number of requests that run at once; more of them wait (default: 64, or --parallel if that is more)")
      ->check(Whole(1, 65536))
      ->type_name("N");
  app->add_flag("--kv-reserve", o->kv_reserve,
                "reserve the KV cache of a whole context when a request begins, so that fewer requests fit");
}

void AddContextShiftFlags(CLI::App* app, ComputeOptions* o) {
  auto* shift =
      app->add_flag("--context-shift", o->context_shift,
                    "when the context is full, drop the older half of it and go on; the text differs from that "
                    "with a longer context");
  app->add_option(
         "--context-keep", o->context_keep,
         "number of first tokens that --context-shift never drops, at most half of the context; -1 is the whole "
         "prompt")
      ->check(Whole(-1, std::numeric_limits<int32_t>::max()))
      ->needs(shift)
      ->type_name("N");
}

void AddTargetFlags(CLI::App* app, TargetOptions* o, bool generates) {
  AddModelFlag(app, &o->model);
  AddYesFlag(app, &o->source);
  AddSourceFlags(app, &o->source);
  AddOpenFlags(app, &o->open);
  app->add_option("--stages", o->stages, "cut the model into N stages, a ring in this process")
      ->check(Whole(1))
      ->type_name("N");
  AddEngineFlags(app, o);
  if (generates) AddContextShiftFlags(app, o);
  auto* cluster =
      app->add_option("--cluster", o->cluster,
                      "ask the coordinator at HOST:PORT instead of running a MODEL here; of several addresses "
                      "the coordinator that leads is asked")
          ->check(Addresses())
          ->type_name("HOST:PORT,...");
  // These flags say how a model runs here; a coordinator has its own.
  for (CLI::Option* option : app->get_options()) {
    if (option != cluster && option != app->get_help_ptr()) cluster->excludes(option);
  }
  AddIdentityFlag(app, &o->identity)->needs(cluster);
  AddQuietFlag(app, &o->quiet);
}

void AddUrlFlags(CLI::App* app, TargetOptions* o) {
  const auto before = app->get_options();
  auto* url = app->add_option(
      "--url", o->url, "ask an OpenAI-compatible server, as http://127.0.0.1:8080, instead of running a MODEL here");
  for (CLI::Option* option : before) {
    if (option != app->get_help_ptr() && option->get_name() != "--quiet") url->excludes(option);
  }
  AddHttpClientFlags(app, &o->api_key, &o->ca_file, &o->model_id);
}

std::vector<std::string> GivenFlags(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && !option->get_lnames().empty()) out.push_back(option->get_lnames()[0]);
  }
  return out;
}

// Flags that say which texts an answer may be; at most one of them may be given.
void AddGrammarFlags(CLI::App* app, CLI::Option* endless, GenerateOptions* generate) {
  using grammar::SourceKind;
  std::optional<grammar::Source>* const o = &generate->grammar;
  const auto add = [&](const std::string& flag, SourceKind kind, const std::string& text_begins, const char* help) {
    return app->add_option_function<std::string>(
        flag,
        [o, kind, text_begins, flag](const std::string& value) {
          if (text_begins.empty() || value.find(text_begins) != std::string::npos) {
            *o = grammar::Source{.kind = kind, .text = value};
            return;
          }
          StatusOr<std::string> text = ReadFile(value);
          if (!text.ok()) throw CLI::ValidationError(flag, Message(text.status()));
          *o = grammar::Source{.kind = kind, .text = *std::move(text)};
        },
        help);
  };
  std::vector<CLI::Option*> all = {
      add("--json-schema", SourceKind::kJsonSchema, "{",
          "the answer is JSON that obeys this schema: a file, or the schema itself")
          ->type_name("FILE"),
      add("--regex", SourceKind::kRegex, "", "the whole answer matches this regular expression (ECMA-262)")
          ->type_name("PATTERN"),
      add("--grammar", SourceKind::kGbnf,
          "::=", "the answer is a text of this grammar (GBNF): a file, or the grammar itself")
          ->type_name("FILE"),
      app->add_option_function<std::vector<std::string>>(
             "--choice",
             [o](const std::vector<std::string>& texts) {
               const boost::json::array choices(texts.begin(), texts.end());
               *o = grammar::Source{.kind = SourceKind::kChoices, .text = boost::json::serialize(choices)};
             },
             "the answer is one of these texts (repeatable)")
          ->type_name("TEXT")
          ->allow_extra_args(false)};
  for (CLI::Option* option : all) {
    option->excludes(endless);
    for (CLI::Option* other : all) {
      if (other != option) option->excludes(other);
    }
  }
  app->add_flag("--compact-json", generate->compact_json, "with --json-schema: no white space in the answer");
  app->add_flag("--no-jump-ahead", generate->no_jump_ahead,
                "ask the model for tokens, too, about which the schema, expression or grammar leaves no choice");
}

void AddGenerateFlags(CLI::App* app, GenerateOptions* o) {
  SamplingParams* const s = &o->sampling;
  app->add_option("-n,--n-predict", o->n,
                  "number of tokens to generate at most; -1 goes on to the end of the context (with --context-shift: "
                  "without end)")
      ->check(Whole(-1))
      ->type_name("N");
  for (const SamplingOption& option : SamplingOptions()) AddSamplingFlag(app, option, s);
  app->add_option_function<std::string>(
         "--draw", [s](const std::string& name) { s->draw = *ParseDrawMethod(name); },
         "how a token is drawn: uniform, or gumbel, which draws other texts of the same probabilities and lets drafts "
         "of a draft model come true more often (default: uniform)")
      ->check(CLI::IsMember(std::vector<std::string>(kDrawMethodNames.begin(), kDrawMethodNames.end())));
  app->add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [s](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) s->logit_bias.push_back(ParseBias(text));
         },
         "add VALUE to the logit of token ID; -inf forbids it (repeatable)")
      ->type_name("ID=VALUE")
      ->allow_extra_args(false);
  app->add_option("-s,--seed", o->seed,
                  "seed of sampling: the same one gives the same text; -1 draws one and prints it")
      ->check(Whole(-1))
      ->type_name("N");
  app->add_option("--stop", o->stops, "end the answer before TEXT (repeatable)")
      ->allow_extra_args(false)
      ->check(NotEmpty());
  auto* endless = app->add_flag("--ignore-eos", o->ignore_eos, "go on where the model ends its text");
  AddGrammarFlags(app, endless, o);
}

}  // namespace gyre
