// The commands of `gyre`. Each returns OK or the sentence that the user reads; exit_code.h turns it into an exit code.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cli/model_source.h"
#include "cli/open_target.h"
#include "cli/session.h"
#include "client/load_plan.h"

namespace gyre {

struct RunOptions {
  TargetOptions ring;
  GenerateOptions generate;
  std::string prompt;
  std::string prompt_file;
  std::string ids_file;
  std::string system;              // with chat
  std::vector<std::string> asked;  // the words of a question
  bool has_prompt = false;         // false, and no file: the prompt is on stdin
  bool chat = false;               // the prompt is a user's message, in the model's chat template
  bool parse_special = false;
  bool echo = false;     // the prompt's text first
  bool no_wrap = false;  // as in ChatOptions
};
Status RunCommand(const RunOptions& options);

// The settings of generation by the long names of their flags.
struct GenerateFlags {
  // Changes one of them. Returns what the user is told: its line, or why it has no effect. kInvalidArgument: the name
  // or the value is wrong.
  std::function<StatusOr<std::string>(GenerateOptions*, const std::string& name, const std::string& value)> set;
  // A line for each, with its value.
  std::function<std::string(const GenerateOptions&)> show;
};

struct ChatOptions {
  TargetOptions ring;
  GenerateOptions generate;
  GenerateFlags flags;  // for the chat's own commands
  std::string system;
  std::string format;                      // "" = by the vocabulary's markers
  bool no_wrap = false;                    // on a terminal, words break where a row ends
  std::string tools;                       // a file; "" = none
  std::vector<std::string> allowed_tools;  // names: they run without a question
  uint32_t tool_rounds = 10;               // answers with calls, one after the other, before the chat stops
};
Status ChatCommand(const ChatOptions& options);

struct PullCommandOptions {
  std::string model;
  SourceOptions source;
};
Status PullCommand(const PullCommandOptions& options);

struct ModelsOptions {
  std::string model;  // of rm
  SourceOptions source;
  bool json = false;
  bool all = false;  // of rm: all that the name means
};
Status ModelsCommand(const ModelsOptions& options);
Status ModelsRemoveCommand(const ModelsOptions& options);
// The age as text: "just now", "3 days ago".
std::string DescribeAge(int64_t seconds);

struct LogitsOptions {
  TargetOptions ring;
  std::string ids_file;
  std::string out_file;
  bool force = false;  // an existing out_file is replaced
};
Status LogitsCommand(const LogitsOptions& options);

struct PerplexityOptions {
  TargetOptions ring;
  std::string text_file;
  uint32_t window = 512;
  uint32_t stride = 0;  // 0 = half of the window
  uint32_t top = 64;    // likeliest ids that are saved, and named when runs are compared
  bool generated = false;
  std::string save, against;  // files of scores; "" = none
  bool force = false;         // an existing file `save` is replaced
  bool json = false;
};
// What a model loses on a text, and how that differs from an earlier run.
Status PerplexityCommand(const PerplexityOptions& options);

struct EvalOptions {
  TargetOptions ring;
  std::string file;
  std::string out;  // a line for each item; "" = none
  bool force = false;
  bool chat = false;   // free answers are a conversation's
  uint64_t limit = 0;  // items; 0 = all
  bool json = false;
};
// A benchmark's questions.
Status EvalCommand(const EvalOptions& options);

// The settings of one side of a comparison.
struct DiffSide {
  std::string model;  // path
  std::string kv_type = "f16", isa, device;
  bool exact = false, generated = false;
  bool operator==(const DiffSide&) const = default;
};

struct DiffOptions {
  DiffSide a, b;
  OpenOptions open;
  std::string text, text_file, ids_file;  // one of them
  uint32_t limit = 0;                     // tokens; 0 = all
  uint32_t chunk = 256;
  int threads = 0;
  std::string cpus;
  int stop_at = -1;  // a layer; -1: the whole model
  std::string out;   // the beginning of the names of two files; "" = none
  bool force = false, json = false, quiet = false;
};
// Where two models, or one under two settings, part.
Status DiffCommand(const DiffOptions& options);

struct CertifyOptions {
  TargetOptions ring;
  std::string reference;  // a safetensors file of ids and logits
  double most = 1e-3;     // the largest relative distance that passes
  bool json = false;
};
// A model's logits beside those that somebody else computed. Fails where they are too far apart.
Status CertifyCommand(const CertifyOptions& options);

struct BatchCommandOptions {
  std::string file, out;
  std::string url, api_key, ca_file;
  uint32_t at_once = 16;
  bool quiet = false;
};
// OpenAI's lines of requests, sent to a server; goes on where an earlier run was killed.
Status BatchCommand(const BatchCommandOptions& options);

struct BenchOptions {
  RuntimeOptions ring;  // model is empty
  std::vector<std::string> models;
  SourceOptions source;
  uint32_t prompt = 512, tokens = 64;
  std::vector<uint32_t> streams = {1, 16};
  std::vector<uint32_t> depths = {0};  // positions that are in the KV cache before decoding
  int runs = 5;
  bool json = false;
  std::string compare;  // what an earlier run printed with --json
};
Status BenchCommand(const BenchOptions& options);

struct BenchServeOptions {
  std::string url, api_key, ca_file, model_id;
  LoadOptions load;
  std::string trace_file;  // requests to replay; "" = load.workload
  bool chat = false, ids = false, json = false, quiet = false;
  int vocab = 0;          // with ids; 0 = ask the server
  double duration = 0;    // seconds; 0 = until every request is answered
  double starvation = 2;  // seconds
  double timeout = 600;   // seconds without a byte
  uint32_t idle = 0;      // connections beside, that ask nothing
  int pid = 0;            // the server's process; its memory is read
  std::string svg_file;
  bool force = false;  // an existing svg_file is replaced
  std::string version;
};
Status BenchServeCommand(const BenchServeOptions& options);

struct DevicesOptions {
  SourceOptions source;  // of the cache, where measured speeds are kept
  bool json = false;
};
Status DevicesCommand(const DevicesOptions& options);

struct TokenizeOptions {
  std::string model;
  OpenOptions open;
  bool add_special = false;
  bool parse_special = false;
  bool jsonl = false;
};
Status TokenizeCommand(const TokenizeOptions& options);

struct GrammarCheckOptions {
  std::string model;  // "" = tokens of one byte each
  OpenOptions open;
  std::string schema, regex, gbnf;  // one of them, or none with jsonl; files but for regex
  bool has_regex = false;           // it may be empty
  bool jsonl = false;
  bool ordered = false;     // members in the order of "properties"
  bool no_formats = false;  // formats are annotations
};
Status GrammarCheckCommand(const GrammarCheckOptions& options);

struct TemplateOptions {
  std::string model, file;
  OpenOptions open;
  bool jsonl = false;
};
Status TemplateCommand(const TemplateOptions& options);

struct ParseAnswerOptions {
  std::string model;  // a model's file; "" takes the template
  std::string file;   // a chat template; "": each line names its format
  bool jsonl = false;
  bool bytewise = false;  // the answer comes byte by byte
};
// Reads recorded answers from stdin, prints the messages that clients get.
Status ParseAnswerCommand(const ParseAnswerOptions& options);

struct ImatrixOptions {
  RuntimeOptions ring;
  std::string text, out;
  uint32_t chunk = 512;  // tokens
  bool force = false;    // an existing file is overwritten
};
Status ImatrixCommand(const ImatrixOptions& options);

struct QuantizeCommandOptions {
  std::string in, out, type;
  std::string importance;                 // a file; "" = none
  std::vector<std::string> tensor_types;  // PATTERN=TYPE
  int threads = 0;
  bool requantize = false, quiet = false;
  bool force = false;  // an existing file is overwritten
};
Status QuantizeCommand(const QuantizeCommandOptions& options);

struct ConvertOptions {
  std::string folder, out;
  std::string merged;  // a LoRA adapter that is added to the weights; then a GGUF file may take the folder's place
  bool quiet = false;
  bool force = false;  // an existing file is overwritten
};
Status ConvertCommand(const ConvertOptions& options);

// The KV cache of `gyre serve` holds this many requests of the whole context.
constexpr uint32_t kServeParallel = 8;

struct ExportOptions {
  std::string model, out;
  std::vector<std::string> tensors;  // regular expressions of names; none: all tensors
  std::string type = "f32";          // or f16; of what is dequantized
  OpenOptions open;
  bool raw = false;  // bytes as they are in the file
  bool quiet = false;
  bool force = false;  // existing files are overwritten
};
// Writes tensors as .npy or safetensors.
Status ExportCommand(const ExportOptions& options);

struct EstimateOptions {
  std::string model, nodes = "1", kv_type = "f16";
  std::string draft_model;  // in the coordinator's process, the first node; "" = none
  std::string speculation = "auto";
  SourceOptions source;
  OpenOptions open;
  uint32_t ctx = 0, parallel = 1, max_rows = 512;  // parallel: requests with the whole context
  bool parallel_given = false;
  bool json = false;
};
Status EstimateCommand(const EstimateOptions& options);

struct InspectOptions {
  std::string model;
  OpenOptions open;
  std::string tensor;  // statistics of this one
  bool json = false;
  bool tensors = false;
};
Status InspectCommand(const InspectOptions& options);

// The HTTP address of `gyre serve`.
constexpr char kHttpAddress[] = "127.0.0.1:8080";

struct HttpOptions {
  std::string address;      // HOST:PORT; "" = kHttpAddress, "off" = no HTTP
  uint16_t more_ports = 0;  // the ports behind the one of `address` that may be taken in its place
  std::string tls_cert, tls_key, api_keys;
  std::vector<std::string> aliases, allow_hosts, cors;
  std::string other_names = "hosted";  // or none, any
  uint64_t max_body_bytes = 0;
  uint32_t connections = 4096;
  uint32_t drain_seconds = 30;
  std::string batches;  // the folder of /v1/files and /v1/batches; "" = there are none
  bool metrics_open = false;
  bool no_reasoning_split = false;  // what a reasoning model thinks is content
};

// The file and format of a server's log.
struct LogOptions {
  std::string file;             // "" = stderr
  std::string format = "text";  // or json
};

struct ServeCommandOptions {
  std::string identity, cluster_ca;  // folders; "" = none
  std::string state;                 // folder; "" = nothing outlives the process, or --standby is given
  std::string standby;               // etcd://...; "" = this coordinator is alone
  std::string etcd_ca, etcd_cert, etcd_key;
  uint32_t lease_seconds = 3;
  uint32_t resume_seconds = 60;
  std::string insecure;  // as ParseInsecure
  bool no_discovery = false;
  RuntimeOptions ring;
  SourceOptions source;
  ServeOptions serve;  // cluster "" = no worker joins
  HttpOptions http;
  std::string memory;        // as 8G; "" = what is free
  std::string layers;        // as 0-7; "" = a share like a worker's
  std::string weights_rate;  // as 50M
  std::string max_body = "8M";
  LogOptions log;
  std::string trace;   // file; "" = none
  bool force = false;  // an existing trace is replaced
  std::string version;
  std::vector<std::pair<std::string, std::string>> flags;  // those of the engine that were given, for /v1/cluster
};
Status ServeCommand(const ServeCommandOptions& options);

struct WorkerCommandOptions {
  SourceOptions source;
  std::string drafts;  // a draft model: the process drafts, and has no layers; "" = it has layers
  std::string join, model, name, listen, layers, memory, device, isa, wire, transport = "auto", cpus;
  std::string identity, token, insecure;
  OpenOptions open;
  uint64_t device_memory = 0;  // as DeviceRequest::memory
  bool no_graphs = false;      // as DeviceRequest::graphs
  int threads = 0;
  std::string weights = "auto";  // or file, fetch
  std::string weights_rate;      // as 50M
  bool quiet = false;
  uint32_t drain_seconds = 60, orphan_seconds = 60;
  LogOptions log;
  std::string version;
};
Status WorkerCommand(const WorkerCommandOptions& options);

struct CaOptions {
  std::string folder, cluster = "gyre", role, name, out, key_type = "p256", ttl = "1h";
  int days = 365;
  bool renew = false, quiet = false;
};
Status CaInitCommand(const CaOptions& options);
Status CaIssueCommand(const CaOptions& options);
Status CaRevokeCommand(const CaOptions& options);
Status CaTokenCommand(const CaOptions& options);

struct AdminOptions {
  std::string cluster, identity;
  std::string what;  // ranges, or a worker
  bool json = false;
  bool dry_run = false;    // of resize and drain
  bool proposed = false;   // of resize: the plan that is proposed
  uint64_t kv_tokens = 0;  // of resize: another size of the KV cache; 0 = not given
  bool why = false;        // of layers
};
Status StatusCommand(const AdminOptions& options);
Status LayersCommand(const AdminOptions& options);
Status ResizeCommand(const AdminOptions& options);
Status DrainCommand(const AdminOptions& options);
Status UndrainCommand(const AdminOptions& options);
Status RemoveCommand(const AdminOptions& options);

struct LaunchOptions {
  std::string file;
  std::string self;  // this program
};
Status LaunchCommand(const LaunchOptions& options);

}  // namespace gyre
