#include "cli/foreign.h"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "base/host_port.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "fmt/core.h"

namespace gyre {
namespace {

struct ForeignCommand {
  const char* names;     // separated by spaces; "_" stands for the space of a command of two words
  const char* ours;      // "" = there is none
  const char* sentence;  // without `ours`: what takes its place
};

constexpr ForeignCommand kCommands[] = {
    {"list ls model models_list models_ls model_list model_ls", "models", ""},
    {"rm delete model_rm", "models rm", ""},
    {"show", "inspect", ""},
    {"ps", "status", ""},
    {"download", "pull", ""},
    {"stop", "",
     "a model stays loaded as long as its process runs: Ctrl-C or SIGTERM ends `gyre serve`; `gyre remove` takes a "
     "worker out of a ring"},
    {"push signin signout login logout", "", "Gyre uploads nothing and has no accounts"},
    {"create", "",
     "a model is a file, and there is no Modelfile: `gyre convert` and `gyre quantize` write model files, --system and "
     "the flags of sampling say the rest"},
    {"cp copy", "", "a model is a file, which `cp` copies; `gyre serve --alias NAME` gives it a further name"},
    {"complete completions generate ask", "",
     "`gyre run MODEL -p TEXT` continues a text, and `gyre run MODEL TEXT` answers"},
};

enum class Value { kNone, kOne, kSwitch };  // kSwitch: on, off or the like may follow

// A row of flags that mean the same. The first row that fits counts.
struct ForeignFlag {
  const char* commands;  // separated by spaces; "" = all that have the flag `ours`, or that compute where it is ""
  const char* names;     // separated by spaces
  Value value;
  const char* ours;      // our flag, which takes the value; "" = there is none
  const char* sentence;  // without `ours`: why the flag has no effect, or (refused) what takes its place
  bool refused = false;
  const char* harmless = "";  // values that ask for nothing, separated by spaces: they are not refused
};

constexpr char kComputing[] = "run chat serve worker bench logits perplexity eval diff certify";
constexpr char kByDevice[] = "--device says what a process computes on, and `gyre devices` lists what there is";
constexpr char kByDefault[] = "it is so without a flag";
constexpr char kSamplers[] =
    "Gyre samples by temperature, top-k, top-p, min-p and penalties: expected one of their flags";

constexpr ForeignFlag kFlags[] = {
    // Servers: what a request says, and access.
    {"serve",
     "--temp --temperature --top-k --top-p --min-p --seed -s --repeat-penalty --presence-penalty --frequency-penalty "
     "--n-predict --predict -n --system --system-prompt --prompt -p",
     Value::kOne, "", "each request to the server says this for itself", true},
    {"serve", "--api-key --api-key-file", Value::kOne, "",
     "keys stand in a file of lines NAME KEY: expected --api-keys FILE", true},
    {"serve", "--allowed-origins", Value::kOne, "", "expected --cors ORIGIN for each", true},
    {"serve", "--metrics --slots --props --embeddings --embedding --webui --reranking", Value::kNone, "", kByDefault},
    {"serve", "--no-webui --no-ui", Value::kNone, "", "the page is a part of the HTTP server: expected --http off",
     true},
    {"serve", "--no-http", Value::kNone, "", "expected --http off", true},
    {"serve", "--disable-log-requests --disable-log-stats --enable-server-load-tracking", Value::kNone, "",
     "GYRE_LOG says how much is logged"},
    {"serve", "--uvicorn-log-level --log-level", Value::kOne, "", "GYRE_LOG says how much is logged"},
    {"serve", "--served-model-name -a", Value::kOne, "--alias", ""},
    {"serve", "--ssl-cert-file --ssl-certfile", Value::kOne, "--tls-cert", ""},
    {"serve", "--ssl-key-file --ssl-keyfile", Value::kOne, "--tls-key", ""},
    {"serve", "-np --n-parallel", Value::kOne, "--parallel", ""},
    {"serve", "--reasoning-format", Value::kOne, "", "expected --no-reasoning-split in place of none", true,
     "auto deepseek"},
    {"serve", "--reasoning-parser", Value::kOne, "", "the model's chat template says where it thinks"},
    {"serve", "--enable-auto-tool-choice", Value::kNone, "", kByDefault},
    {"serve", "--tool-call-parser", Value::kOne, "", "the model's chat template says how it writes calls"},
    // Addresses.
    {"worker", "--host --port", Value::kOne, "",
     "--join HOST:PORT is the coordinator's address, --listen HOST:PORT where activations arrive", true},
    {"run chat bench_serve", "--host --port", Value::kOne, "",
     "--url http://HOST:PORT asks a server, --cluster HOST:PORT a coordinator", true},
    {"worker", "--coordinator --master --head --server", Value::kOne, "--join", ""},
    {"serve worker", "--role", Value::kOne, "", "`gyre serve --cluster` is the master, `gyre worker` a worker", true},
    {"serve worker", "--split --end", Value::kOne, "",
     "--layers A-B says which layers are wanted in the first plan, and `gyre resize` moves them at any time", true},
    {"serve worker", "--next-host --next-port", Value::kOne, "", "the coordinator tells each worker the next one"},
    {"serve run chat", "--workers --rpc", Value::kOne, "",
     "workers dial the coordinator: `gyre serve MODEL --cluster HOST:PORT`, and `gyre worker --join HOST:PORT` on each",
     true},
    {"", "--base-url --api-base", Value::kOne, "--url", ""},
    // Sharing a model.
    {"", "--tensor-parallel-size --tensor-parallel -tp --data-parallel-size --data-parallel -dp", Value::kOne, "",
     "Gyre shares a model by its layers: `gyre worker` makes a ring longer, --stages N is a ring in one process", true,
     "1"},
    {"", "--pipeline-parallel-size --pipeline-parallel -pp", Value::kOne, "",
     "each `gyre worker` that joins is a stage; --min-workers N says how many the first plan waits for", true, "1"},
    {"",
     "-ngl --n-gpu-layers --gpu-layers --num-gpu --ngl -ts --tensor-split -sm --split-mode -mg --main-gpu "
     "--gpu-memory-utilization --mem-fraction-static -ncmoe --n-cpu-moe --swap-space --cpu-offload-gb --gpus",
     Value::kOne, "", kByDevice},
    {"", "-cmoe --cpu-moe -nkvo --no-kv-offload --enforce-eager", Value::kNone, "", kByDevice},
    // The model.
    {"", "-hf -hfr --hf-repo --hf --model-path -mu --model-url", Value::kOne, "--model", ""},
    {"", "-hff --hf-file", Value::kOne, "", "a name says which file, as ORG/REPO:Q4_K_M", true},
    {"", "--revision", Value::kOne, "", "a name says the revision, as ORG/REPO:Q4_K_M@REVISION", true},
    {"worker", "-hft --hf-token", Value::kOne, "--hub-token", ""},
    {"", "-hft --hf-token", Value::kOne, "--token", ""},
    {"", "--download-dir --cache-dir", Value::kOne, "--cache", ""},
    {"", "--dtype --load-format", Value::kOne, "",
     "weights are read as the file has them; `gyre quantize` writes another file", true, "auto gguf safetensors"},
    {"", "--quantize --quant", Value::kOne, "--quantization", ""},
    {"", "--trust-remote-code", Value::kNone, "", "Gyre runs no code that comes with a model"},
    {"", "--mlock --mmap --no-mmap --check-tensors", Value::kNone, "", "Gyre decides how it reads a model's file"},
    {"", "--warmup --no-warmup", Value::kNone, "", "Gyre needs no warm-up"},
    {"", "--keepalive --keep-alive", Value::kOne, "", "the model stays loaded as long as the process runs"},
    {"", "--jinja", Value::kNone, "", kByDefault},
    {"", "--chat-template --chat-template-file --no-jinja", Value::kOne, "",
     "the model's own chat template is used; --format of `gyre chat` names another, and `gyre template` shows it",
     true},
    {"", "-md --model-draft --spec-draft-model --speculative-model", Value::kOne, "--draft-model", ""},
    {"", "--draft --draft-n --draft-max --spec-draft-n-max --num-speculative-tokens", Value::kOne, "--draft-tokens",
     ""},
    {"", "--speculative-config", Value::kOne, "",
     "--speculation says who guesses tokens ahead, --draft-model FILE names a model for it, --draft-tokens N how many",
     true},
    {"", "--lora-scaled --control-vector --mmproj -mm --image --override-kv -ot --override-tensor", Value::kOne, "",
     "Gyre reads one model file, as it is", true},
    {"", "--lora-modules", Value::kOne, "--lora", ""},
    {"", "--enable-lora", Value::kNone, "", "--lora NAME=FILE needs no further switch"},
    {"", "--max-loras --max-lora-rank --max-cpu-loras", Value::kOne, "", "up to 256 adapters of any rank fit"},
    {"", "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --hf-overrides", Value::kOne,
     "", "positions are scaled as the model's file says", true},
    // Context, KV cache, steps.
    {"", "--ctx-size --max-model-len --num-ctx --context-length --max-seq-len", Value::kOne, "--ctx", ""},
    {"", "-ctk --cache-type-k -ctv --cache-type-v --kv-cache-dtype", Value::kOne, "--kv-type", "", false, "auto"},
    {"", "--max-num-seqs --max-running-requests", Value::kOne, "--max-sequences", ""},
    {"", "-b --batch-size --max-num-batched-tokens", Value::kOne, "--max-rows", ""},
    {"", "-ub --ubatch-size --chunked-prefill-size", Value::kOne, "--chunk", ""},
    {"", "--keep", Value::kOne, "--context-keep", ""},
    {"", "-nocb --no-cont-batching", Value::kNone, "--no-continuous-batching", ""},
    {"", "--no-enable-prefix-caching --disable-radix-cache", Value::kNone, "--no-prefix-cache", ""},
    {"", "--no-enable-chunked-prefill", Value::kNone, "--no-chunked-prefill", ""},
    {"",
     "-cb --cont-batching --enable-prefix-caching --enable-chunked-prefill --no-context-shift --no-conversation "
     "-no-cnv",
     Value::kNone, "", kByDefault},
    {"", "-fa --flash-attn --flash-attention", Value::kSwitch, "", "Gyre has one kind of attention"},
    // Threads.
    {"", "--n-threads --nthreads --num-threads", Value::kOne, "--threads", ""},
    {"", "-tb --threads-batch", Value::kOne, "", "--threads counts for prompts and for decoding", true},
    {"", "-Cr --cpu-range", Value::kOne, "--cpus", ""},
    {"", "--numa", Value::kOne, "", "expected --cpus LIST, the processors that threads stay on", true},
    {"", "-dev", Value::kOne, "--device", ""},
    // Text.
    {"", "--temperature", Value::kOne, "--temp", ""},
    {"", "--predict --max-tokens --max-new-tokens --num-predict --steps", Value::kOne, "--n-predict", ""},
    {"", "--repetition-penalty", Value::kOne, "--repeat-penalty", ""},
    {"", "-sys --system-prompt", Value::kOne, "--system", ""},
    {"", "-r --reverse-prompt", Value::kOne, "--stop", ""},
    {"run", "-cnv --conversation -i --interactive --interactive-first", Value::kNone, "",
     "`gyre chat MODEL` is a conversation", true},
    {"chat", "-cnv --conversation -i --interactive", Value::kNone, "", kByDefault},
    {"run", "-st --single-turn", Value::kNone, "--chat", ""},
    {"run chat", "-e --escape", Value::kNone, "", "a prompt is taken as it stands; in bash $'\\n' is the end of a line",
     true},
    {"run chat", "-l", Value::kOne, "", "expected --logit-bias ID=VALUE", true},
    {"run chat", "--no-escape --no-display-prompt --simple-io --log-disable", Value::kNone, "", kByDefault},
    {"run chat", "--color -co", Value::kSwitch, "", "only the thoughts of a model look different, on a terminal"},
    {"run chat", "--nowordwrap", Value::kNone, "--no-wrap", ""},
    {"run chat", "--think --hidethinking", Value::kSwitch, "",
     "the model's chat template decides whether it thinks; thoughts are shown on a terminal only", true},
    {"run", "--format", Value::kOne, "", "expected --json-schema FILE", true},
    {"run chat", "--grammar-file", Value::kOne, "--grammar", ""},
    {"run chat", "-j --json-schema-file", Value::kOne, "--json-schema", ""},
    {"run chat",
     "--samplers --sampling-seq --mirostat --mirostat-lr --mirostat-ent --typical --xtc-probability --xtc-threshold "
     "--dry-multiplier --dry-base --dry-allowed-length --dynatemp-range --dynatemp-exp --top-nsigma --tfs",
     Value::kOne, "", kSamplers, true},
    {"run chat", "--prompt-cache --prompt-cache-all --in-prefix --in-suffix", Value::kOne, "", "Gyre has no such flag",
     true},
    {"", "-v --verbose --log-verbose", Value::kNone, "", "GYRE_LOG=debug in the environment logs more"},
    {"", "-lv --verbosity --log-verbosity", Value::kOne, "", "GYRE_LOG=debug in the environment logs more"},
    // Load tests.
    {"bench_serve", "--num-prompts", Value::kOne, "--requests", ""},
    {"bench_serve", "--request-rate", Value::kOne, "--rate", ""},
    {"bench_serve", "--max-concurrency", Value::kOne, "--concurrency", ""},
};

// Whether `word`, with "_" for each space in it, is one of the words of a list.
bool Lists(std::string_view list, std::string word) {
  std::replace(word.begin(), word.end(), ' ', '_');
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(' ', at), list.size());
    if (list.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

const ForeignCommand* FindForeignCommand(const std::string& name) {
  for (const ForeignCommand& command : kCommands) {
    if (Lists(command.names, name)) return &command;
  }
  return nullptr;
}

// vLLM takes underscores in long flags, too.
std::string WithDashes(std::string name) {
  if (name.rfind("--", 0) == 0) std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// nullptr: the flag is ours, or nobody's.
const ForeignFlag* FindForeignFlag(CommandFlags& flags, const std::string& command, const std::string& name) {
  // Words as -ngl come first: of our flags it would be -n with the value "gl".
  const bool may_be_ours = name.size() == 2 || name.rfind("--", 0) == 0;
  if (may_be_ours && flags.FindWord(name) != nullptr) return nullptr;
  for (const ForeignFlag& flag : kFlags) {
    if (!Lists(flag.names, WithDashes(name))) continue;
    const bool has = *flag.ours != '\0' && flags.FindWord(flag.ours) != nullptr;
    if (*flag.ours != '\0' && !has) continue;
    if (*flag.commands != '\0' ? Lists(flag.commands, command) : has || Lists(kComputing, command)) return &flag;
  }
  return nullptr;
}

class Translator {
 public:
  explicit Translator(const Command& command) : command_(command), flags_(command) {}

  StatusOr<Translated> Run(const std::vector<std::string>& words) {
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i] == "--") {
        out_.words.insert(out_.words.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
        break;
      }
      if (words[i].size() < 2 || words[i][0] != '-') {
        bare_.push_back(out_.words.size());
        out_.words.push_back(words[i]);
        continue;
      }
      GYRE_RETURN_IF_ERROR(TakeFlag(words, &i));
    }
    GYRE_RETURN_IF_ERROR(AddAddress());
    MoveBareWords();
    return std::move(out_);
  }

 private:
  // Takes a flag, and its value if the next word is one.
  Status TakeFlag(const std::vector<std::string>& words, size_t* i) {
    const std::string& word = words[*i];
    const size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    const std::string dashed = WithDashes(name);
    if (flags_.FindWord(name) == nullptr && flags_.FindWord(dashed) != nullptr) name = dashed;
    const bool address = command_.name == "serve" && (name == "--host" || name == "--port");
    const ForeignFlag* foreign = address ? nullptr : FindForeignFlag(flags_, command_.name, name);
    if (!address && foreign == nullptr) {
      bool next = false;
      const std::string ours = name + (equals == std::string::npos ? "" : word.substr(equals));
      flags_.In(ours, &next);
      out_.words.push_back(ours);
      if (next && *i + 1 < words.size()) out_.words.push_back(words[++*i]);
      return absl::OkStatus();
    }
    std::optional<std::string> value;
    if (equals != std::string::npos) value = word.substr(equals + 1);
    const bool more = !value && *i + 1 < words.size();
    const Value takes = address ? Value::kOne : foreign->value;
    if (more &&
        (takes == Value::kOne || (takes == Value::kSwitch && Lists("on off auto true false 0 1", words[*i + 1])))) {
      value = words[++*i];
    }
    if (takes == Value::kOne && !value) return UsageError("{}: a value is needed", name);
    if (address) return TakeAddress(name, *value);
    if (value && *foreign->harmless != '\0' && Lists(foreign->harmless, *value)) return absl::OkStatus();
    if (*foreign->ours != '\0') {
      // Two foreign flags may be one of ours, as the types of keys and of values.
      const std::pair<std::string, std::string> ours(foreign->ours, value.value_or(""));
      if (std::find(added_.begin(), added_.end(), ours) != added_.end()) return absl::OkStatus();
      added_.push_back(ours);
      out_.words.push_back(ours.first);
      if (value) out_.words.push_back(*value);
      return absl::OkStatus();
    }
    if (foreign->refused) return UsageError("{}: {}", name, foreign->sentence);
    out_.notes.push_back(fmt::format("{} has no effect: {}", name, foreign->sentence));
    return absl::OkStatus();
  }

  // --host and --port of a server.
  Status TakeAddress(const std::string& name, const std::string& value) {
    if (name == "--host") {
      host_ = value;
      return absl::OkStatus();
    }
    uint16_t port = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), port);
    if (error != std::errc() || end != value.data() + value.size()) {
      return UsageError("--port: '{}', expected a whole number from 0 to 65535", value);
    }
    port_ = port;
    return absl::OkStatus();
  }
  Status AddAddress() {
    if (!host_ && !port_) return absl::OkStatus();
    const char* const flag = host_ ? "--host" : "--port";
    if (flags_.Given(out_.words).count(flags_.FindWord("--http")) > 0) {
      return UsageError("{} can't go with --http HOST:PORT, which says both", flag);
    }
    GYRE_ASSIGN_OR_RETURN(HostPort at, ParseHostPort(kHttpAddress));
    if (host_) at.host = *host_;
    if (port_) at.port = *port_;
    const std::string words[] = {"--http", FormatHostPort(at.host, at.port)};
    out_.words.insert(out_.words.begin(), std::begin(words), std::end(words));
    for (size_t& bare : bare_) bare += std::size(words);
    return absl::OkStatus();
  }

  // Where a flag takes the place of the first bare word, as --cluster that of MODEL, bare words are what comes next.
  // A word that is a file stays a MODEL, so that the mistake is named.
  void MoveBareWords() {
    std::vector<CLI::Option*> places;
    for (CLI::Option* option : flags_.All()) {
      if (option->get_positional()) places.push_back(option);
    }
    if (places.size() < 2 || places[1]->get_lnames().empty()) return;
    std::vector<std::string> dashed;
    for (size_t i = 0; i < out_.words.size(); ++i) {
      if (std::find(bare_.begin(), bare_.end(), i) == bare_.end()) dashed.push_back(out_.words[i]);
    }
    const auto given = flags_.Given(dashed);
    const auto& excluded = places[0]->get_excludes();
    if (std::none_of(given.begin(), given.end(), [&](CLI::Option* o) { return excluded.count(o) > 0; })) return;
    for (auto at = bare_.rbegin(); at != bare_.rend(); ++at) {
      std::string& word = out_.words[*at];
      if (access(word.c_str(), F_OK) == 0) continue;
      word = "--" + places[1]->get_lnames()[0] + "=" + word;
    }
  }

  const Command& command_;
  CommandFlags flags_;
  Translated out_;
  std::vector<size_t> bare_;                                // places in out_.words
  std::vector<std::pair<std::string, std::string>> added_;  // of ours, for foreign ones
  std::optional<std::string> host_;
  std::optional<uint16_t> port_;
};

}  // namespace

std::string OurCommand(const std::string& name) {
  const ForeignCommand* command = FindForeignCommand(name);
  return command != nullptr && *command->ours != '\0' ? command->ours : name;
}

Status CheckForeignCommand(const std::string& name) {
  const ForeignCommand* command = FindForeignCommand(name);
  if (command == nullptr || *command->sentence == '\0') return absl::OkStatus();
  return UsageError("there is no command '{}': {}", name, command->sentence);
}

std::string OurFlag(CommandFlags& flags, const std::string& word) {
  const ForeignFlag* flag = FindForeignFlag(flags, "", word);
  return flag != nullptr ? std::string(flag->ours).substr(std::min<size_t>(2, std::string(flag->ours).size())) : "";
}

StatusOr<Translated> Translate(const Command& command, const std::vector<std::string>& words) {
  return Translator(command).Run(words);
}

}  // namespace gyre
