// gyre serve, gyre worker: the processes of a ring over machines.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <thread>

#include "base/cpus.h"
#include "base/log.h"
#include "base/range.h"
#include "base/trace.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/listen.h"
#include "cli/log_setup.h"
#include "cli/model_source.h"
#include "cli/progress.h"
#include "cli/serve_http.h"
#include "cli/session.h"
#include "coordinator/grpc_server.h"
#include "coordinator/trace_json.h"
#include "fmt/core.h"
#include "runtime/runtime.h"
#include "weights/weight_offer.h"
#include "worker/node.h"

namespace gyre {
namespace {

// Who joins and leaves is worth a line, unless GYRE_LOG says otherwise.
void TellMore() {
  if (std::getenv("GYRE_LOG") == nullptr) SetLogLevel(LogLevel::kInfo);
}

// "A-B", both ends inclusive; the coordinator knows how many there are.
StatusOr<LayerRange> ParseWish(const std::string& text) {
  const auto range = ParseRange(text);
  if (!range || range->last < range->first || range->last == std::numeric_limits<int>::max()) {
    return UsageError("--layers {}: expected A-B, as 0-7", text);
  }
  return LayerRange{range->first, range->last + 1};
}

// 0 for "".
StatusOr<uint64_t> ParseSizeFlag(const char* flag, const std::string& text) {
  if (text.empty()) return uint64_t{0};
  const StatusOr<uint64_t> bytes = ParseSize(text);
  return bytes.ok() ? bytes : AsUsage(Annotate(bytes.status(), flag));
}

// Until a signal comes.
void ServeUntilStopped(Runtime* runtime, HttpFront* http) {
  Deadline report = Clock::now();
  while (!InterruptGuard::Interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (TakeHangup() && http != nullptr) http->Reload();
    runtime->cluster().AskForTraces();
    if (Clock::now() < report) continue;
    report = After(std::chrono::milliseconds(500));
    runtime->ReportLoads();
  }
}

// The settings of a cluster, and whether its ports can be had.
Status CheckCluster(const ServeCommandOptions& options, ServeOptions* serve) {
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseListen("--cluster", serve->cluster, serve->insecure));
  if (!serve->ring.empty()) {
    GYRE_ASSIGN_OR_RETURN(const HostPort ring, ParseListen("--ring", serve->ring, serve->insecure));
    GYRE_RETURN_IF_ERROR(CheckPort("--ring", ring));
  }
  GYRE_RETURN_IF_ERROR(CheckPort("--cluster", at));
  if (serve->bit_equal && options.ring.wire != "f32") {
    return UsageError(
        "--bit-equal with --wire {}: it rounds at every hop, so the text would depend on where the layers are cut; "
        "expected f32",
        options.ring.wire);
  }
  GYRE_ASSIGN_OR_RETURN(serve->memory, ParseSizeFlag("--memory", options.memory));
  if (!options.layers.empty()) {
    if (serve->no_local) return UsageError("--layers {} with --no-local: no layers run here", options.layers);
    GYRE_ASSIGN_OR_RETURN(serve->wish, ParseWish(options.layers));
  }
  if (serve->ring.empty()) serve->ring = FormatHostPort(at.host, 0);
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<GrpcServer>> OpenGrpc(const ServeCommandOptions& options, const ServeOptions& serve,
                                               const RuntimeOptions& ring_options, Runtime* ring,
                                               WeightOffer* weights) {
  const GrpcServerOptions grpc_options{.address = serve.cluster,
                                       .term = ring->term(),
                                       .version = options.version,
                                       .context = ring->context(),
                                       .context_shift = ring_options.context_shift,
                                       .kv_type = ring_options.kv_type,
                                       .exact = ring_options.exact,
                                       .weights = weights,
                                       .open = ring_options.ForOpening()};
  return GrpcServer::Open(grpc_options, ring->model(), ring->engine(), ring->cluster(), ring->service());
}

// Records from its making on, and writes what the buffer has at its end.
class TraceFile {
 public:
  static StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path, Tracer& tracer) {
    auto file = std::unique_ptr<TraceFile>(new TraceFile(path, tracer));
    if (!file->out_) return UsageError("--trace {}: the file can't be written", path);
    return file;
  }
  Status Write() {
    out_ << TraceJson(session_.Events(), session_.Members());
    out_.close();
    if (!out_) return Unavailable("the trace {} can't be written", path_);
    return absl::OkStatus();
  }

 private:
  TraceFile(const std::string& path, Tracer& tracer) : path_(path), out_(path), session_(tracer) {}
  const std::string path_;
  std::ofstream out_;
  const Tracer::Session session_;
};

}  // namespace

Status ServeCommand(const ServeCommandOptions& options) {
  GYRE_RETURN_IF_ERROR(StartLog(options.log));
  InterruptGuard guard(0);
  TellMore();
  ServeOptions serve = options.serve;
  HttpOptions http = options.http;
  const bool clustered = !serve.cluster.empty();
  if (!clustered && http.address.empty()) http.address = kHttpAddress;
  GYRE_ASSIGN_OR_RETURN(http.max_body_bytes, ParseSizeFlag("--max-body", options.max_body));
  HostPort http_at;
  if (!http.address.empty()) GYRE_RETURN_IF_ERROR(CheckHttp(http, serve.insecure, &http_at));
  RuntimeOptions ring_options = options.ring;
  Tracer tracer;
  ring_options.tracer = &tracer;
  std::unique_ptr<TraceFile> trace;
  if (!options.trace.empty()) {
    GYRE_ASSIGN_OR_RETURN(trace, TraceFile::Open(options.trace, tracer));
  }
  if (clustered) {
    GYRE_RETURN_IF_ERROR(CheckCluster(options, &serve));
    ring_options.serve = &serve;
  }
  const StatusOr<std::string> path = LocateModel(ring_options.model, [&] {
    SourceOptions source = options.source;
    source.quiet = ring_options.quiet;
    return source;
  }());
  if (absl::IsCancelled(path.status())) return absl::OkStatus();  // as while it loads
  GYRE_RETURN_IF_ERROR(path.status());
  if (*path != ring_options.model) http.aliases.push_back(ring_options.model);
  ring_options.model = *path;
  // Workers on the same machine open the same path.
  std::error_code ignored;
  const auto absolute = std::filesystem::absolute(ring_options.model, ignored);
  if (!ignored) ring_options.model = absolute.string();
  // Before the model loads, so that whoever watches the process sees that it lives.
  std::unique_ptr<HttpFront> front;
  if (!http.address.empty()) {
    GYRE_ASSIGN_OR_RETURN(front, HttpFront::Open(http, http_at));
  }
  LoadingBar bar(ring_options.quiet);
  ring_options.on_load = bar.callback();
  auto opened = Runtime::Open(ring_options);
  bar.Finish();
  GYRE_ASSIGN_OR_RETURN(const auto ring, std::move(opened));
  std::unique_ptr<WeightOffer> weights;
  std::unique_ptr<GrpcServer> server;
  if (clustered) {
    weights =
        std::make_unique<WeightOffer>(ring->model_ptr(), WeightCache(CacheFolder(options.source), 0), &ring->port());
    GYRE_ASSIGN_OR_RETURN(const uint64_t rate, ParseSizeFlag("--weights-rate", options.weights_rate));
    weights->server().SetRate(rate);
    GYRE_ASSIGN_OR_RETURN(server, OpenGrpc(options, serve, ring_options, ring.get(), weights.get()));
  }
  if (front != nullptr) front->Serve(ring_options.model, options.version, *ring, &tracer);
  InterruptGuard::Begin(front != nullptr ? 2 : 1);
  // For people, and for programs that started it with port 0.
  if (server != nullptr) fmt::print("listening {}\n", server->address());
  if (front != nullptr) fmt::print("listening {}\n", front->server().url());
  std::fflush(stdout);
  if (!ring_options.quiet && server != nullptr) {
    fmt::print(stderr, "{}: workers join with `gyre worker --join {}`\n", ring_options.model, server->address());
  }
  if (!ring_options.quiet && front != nullptr) {
    fmt::print(stderr, "{}: open {} in a browser; clients of OpenAI's API use {}/v1\n", ring_options.model,
               front->server().url(), front->server().url());
  }
  ServeUntilStopped(ring.get(), front.get());
  if (front != nullptr) front->Drain();
  // No more plans, then no more calls, then the rest.
  ring->cluster().Stop();
  if (front != nullptr) front->server().Stop();
  if (server != nullptr) server->Stop();
  return trace != nullptr ? trace->Write() : absl::OkStatus();
}

Status WorkerCommand(const WorkerCommandOptions& options) {
  GYRE_RETURN_IF_ERROR(StartLog(options.log));
  InterruptGuard guard(0);
  InterruptGuard::Begin(2);
  TellMore();
  GYRE_ASSIGN_OR_RETURN(const Isa isa, ParseIsa(options.isa));
  GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(options.threads, options.cpus));
  NodeOptions node{.join = options.join,
                   .model = options.model,
                   .open = options.open,
                   .name = options.name,
                   .listen = options.listen,
                   .wish = std::nullopt,
                   .threads = team.threads,
                   .cpus = team.cpus,
                   .memory = 0,
                   .isa = isa,
                   .wire_types = kAllActivations,
                   .insecure = options.insecure,
                   .version = options.version,
                   .say = {}};
  if (!options.layers.empty()) {
    GYRE_ASSIGN_OR_RETURN(node.wish, ParseWish(options.layers));
  }
  if (!options.wire.empty()) {
    GYRE_ASSIGN_OR_RETURN(const WireType wire, ParseWireType(options.wire));
    node.wire_types = Only(wire);
  }
  GYRE_ASSIGN_OR_RETURN(node.transport, ParseTransport(options.transport));
  GYRE_ASSIGN_OR_RETURN(node.memory, ParseSizeFlag("--memory", options.memory));
  if (!node.model.empty()) {
    GYRE_ASSIGN_OR_RETURN(node.model, LocateModel(node.model, options.source));
  }
  node.weights = options.weights == "file"    ? WeightsFrom::kFile
                 : options.weights == "fetch" ? WeightsFrom::kFetch
                                              : WeightsFrom::kAuto;
  node.cache = CacheFolder(options.source);
  GYRE_ASSIGN_OR_RETURN(node.weights_rate, ParseSizeFlag("--weights-rate", options.weights_rate));
  GYRE_ASSIGN_OR_RETURN(node.cache_limit, ParseSizeFlag("--cache-limit", options.source.cache_limit));
  node.other_models = [source = options.source] { return CachedModelPaths(source); };
  const bool logged = !options.log.file.empty() || options.log.format != "text";
  if (!options.quiet) {
    node.say = [logged](const std::string& line) {
      if (logged) return Log(LogLevel::kInfo, "{}", line);
      fmt::print(stderr, "{}\n", line);
    };
  }
  // SIGTERM has the layers go to others first; Ctrl-C, or a second signal, ends at once.
  node.leaves = [] { return InterruptGuard::Terminated(); };
  node.drain_timeout = std::chrono::seconds(options.drain_seconds);
  return RunNode(node, [] {
    TakeHangup();
    return InterruptGuard::Count() > (InterruptGuard::Terminated() ? 1 : 0);
  });
}

}  // namespace gyre
