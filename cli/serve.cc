// gyre serve: a server, alone or as the coordinator of a ring of machines.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "base/counted.h"
#include "base/files.h"
#include "base/log.h"
#include "base/trace.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/listen.h"
#include "cli/log_setup.h"
#include "cli/model_source.h"
#include "cli/out_file.h"
#include "cli/progress.h"
#include "cli/serve_http.h"
#include "cli/serve_standby.h"
#include "cli/server_setup.h"
#include "cli/session.h"
#include "coordinator/grpc/server.h"
#include "coordinator/http/trace_json.h"
#include "coordinator/state/sqlite_store.h"
#include "coordinator/state/state_keeper.h"
#include "fmt/core.h"
#include "identity/authority.h"
#include "limits/machine_speed.h"
#include "model/source_files.h"
#include "runtime/devices.h"
#include "runtime/runtime.h"
#include "transport/discovery.h"
#include "transport/tcp_link.h"
#include "weights/link_prober.h"
#include "weights/weight_offer.h"

namespace gyre {
namespace {

// Answers workers on the local network that look for the coordinator, if it listens there. null: it does not, or can't.
std::unique_ptr<DiscoveryResponder> AnswerSeekers(const std::string& address, const ServeOptions& serve) {
  const StatusOr<HostPort> at = ParseHostPort(address);
  if (!at.ok() || IsLoopback(at->host)) return nullptr;
  auto responder =
      DiscoveryResponder::Start({.host = at->host,
                                 .port = at->port,
                                 .authority = serve.identity != nullptr ? serve.identity->current()->authority() : ""});
  if (responder.ok()) return *std::move(responder);
  Log(LogLevel::kWarn, "workers don't find this coordinator by themselves: {}", Message(responder.status()));
  return nullptr;
}

// Serves until a signal comes.
void ServeUntilStopped(Runtime* runtime, HttpFront* http, IdentityFolder* identity) {
  Deadline report = Clock::now();
  IdentityWatch watch(identity);
  while (!InterruptGuard::Interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const bool hangup = TakeHangup();
    if (hangup && http != nullptr) http->Reload();
    watch.Look(hangup);
    runtime->cluster().AskForTraces();
    if (Clock::now() < report) continue;
    report = After(std::chrono::milliseconds(500));
    runtime->ReportLoads();
  }
}

// Checks the settings of a cluster, and that its ports are free.
Status CheckCluster(const ServeCommandOptions& options, const Insecure& insecure, ServeOptions* serve) {
  const bool tls = serve->identity != nullptr;
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseListen("--cluster", serve->cluster, tls, insecure.cluster, "cluster"));
  const bool ring_named = !serve->ring.empty();
  if (!ring_named) serve->ring = FormatHostPort(at.host, 0);
  GYRE_ASSIGN_OR_RETURN(const HostPort ring, ParseListen("--ring", serve->ring, tls, insecure.ring, "ring"));
  if (ring_named) GYRE_RETURN_IF_ERROR(CheckPort("--ring", ring));
  GYRE_RETURN_IF_ERROR(CheckPort("--cluster", at));
  if (serve->bit_equal && options.ring.wire != "f32") {
    return UsageError(
        "--bit-equal with --wire {}: it rounds at every hop, so the text would depend on where the layers are cut; "
        "expected f32",
        options.ring.wire);
  }
  if (serve->replicate_kv && options.ring.no_prefix_cache) {
    return UsageError("--replicate-kv with --no-prefix-cache: what was replicated is found by the prefix cache only");
  }
  GYRE_ASSIGN_OR_RETURN(serve->memory, ParseSizeFlag("--memory", options.memory));
  if (!options.layers.empty()) {
    if (serve->no_local) return UsageError("--layers {} with --no-local: no layers run here", options.layers);
    GYRE_ASSIGN_OR_RETURN(serve->preference, ParseLayerPreference(options.layers));
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<GrpcServer>> OpenGrpc(const ServeCommandOptions& options, const ServeOptions& serve,
                                               const RuntimeOptions& ring_options, Runtime* ring,
                                               WeightOffer* weights) {
  const GrpcServerOptions grpc_options{
      .address = serve.cluster,
      .term = ring->term(),
      .cluster_id = ring_options.state != nullptr ? ring_options.state->cluster_id() : 0,
      .version = options.version,
      .context = ring->context(),
      .context_shift = ring_options.context_shift,
      .kv_type = ring_options.kv_type,
      .exact = ring_options.exact,
      .drafter = ring->remote_drafter(),
      .texts = std::max(1u, ring_options.parallel),
      .weights = weights,
      .open = ring_options.ForOpening(),
      .identity = serve.identity,
      .cluster_ca = options.cluster_ca};
  return GrpcServer::Open(grpc_options, ring->model(), ring->engine(), ring->cluster(), ring->service());
}

// standby null: the state is in the folder of --state.
StatusOr<std::unique_ptr<StateKeeper>> OpenState(const ServeCommandOptions& options, Standby* standby) {
  StoredState found;
  auto store = standby != nullptr ? standby->OpenState(&found) : OpenSqliteStore(options.state, TermNow(), &found);
  const std::string where = standby != nullptr ? "--standby" : "--state";
  if (!store.ok()) return Annotate(store.status(), where);
  KeeperOptions keeper;
  keeper.requests.resume_timeout = std::chrono::seconds(options.resume_seconds);
  // Etcd keeps every version of a key for some time, so it is written less often; unwritten tokens are computed again.
  if (standby != nullptr) {
    keeper.write_interval = std::chrono::seconds(1);
    keeper.units_at_once = 1000;
  }
  auto state = StateKeeper::Start(*std::move(store), found, keeper);
  if (!state.ok()) return Annotate(state.status(), where);
  if (const size_t open = (*state)->open_requests(); open > 0) {
    Log(LogLevel::kInfo, "term {}: {} of before the restart can be reattached", found.term, Counted(open, "request"));
  }
  return state;
}

// Records events from its construction on, and writes the buffer to the file at its end.
class TraceFile {
 public:
  // model: the one that is served, whose files are never replaced.
  static StatusOr<std::unique_ptr<TraceFile>> Open(const ServeCommandOptions& options, const std::string& model,
                                                   Tracer& tracer) {
    StatusOr<OutFile> out = OutFile::Open(options.trace, {.overwrite = options.force, .sources = SourceFiles(model)});
    if (!out.ok()) return UsageError("--trace {}", Message(out.status()));
    return std::unique_ptr<TraceFile>(new TraceFile(*std::move(out), tracer));
  }
  Status Write() {
    const std::string json = TraceJson(session_.Events(), session_.Members());
    GYRE_RETURN_IF_ERROR(Annotate(out_.Write(std::as_bytes(std::span(json))), "the trace"));
    return Annotate(out_.Finish(), "the trace");
  }

 private:
  TraceFile(OutFile out, Tracer& tracer) : out_(std::move(out)), session_(tracer) {}
  OutFile out_;
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
  GYRE_RETURN_IF_ERROR(ChooseHttpAddress(clustered, &http));
  GYRE_ASSIGN_OR_RETURN(http.max_body_bytes, ParseSizeFlag("--max-body", options.max_body));
  GYRE_ASSIGN_OR_RETURN(const Insecure insecure, ParseInsecure(options.insecure));
  HostPort http_at;
  if (!http.address.empty()) GYRE_RETURN_IF_ERROR(CheckHttp(http, insecure.http, &http_at));
  RuntimeOptions ring_options = options.ring;
  Tracer tracer;
  ring_options.tracer = &tracer;
  std::unique_ptr<TraceFile> trace;
  if (!options.trace.empty()) {
    GYRE_ASSIGN_OR_RETURN(trace, TraceFile::Open(options, ring_options.model, tracer));
  }
  if (clustered) {
    // It may have to make its list of revoked certificates again.
    if (!options.cluster_ca.empty()) GYRE_RETURN_IF_ERROR(Authority::Open(options.cluster_ca).status());
    const std::string revoked = options.cluster_ca.empty() ? "" : options.cluster_ca + "/" + kRevokedFile;
    GYRE_ASSIGN_OR_RETURN(serve.identity, OpenIdentity(options.identity, Role::kCoordinator, revoked));
    GYRE_RETURN_IF_ERROR(CheckCluster(options, insecure, &serve));
    ring_options.serve = &serve;
    if (!options.standby.empty()) GYRE_RETURN_IF_ERROR(Standby::Check(options));
    serve.version = options.version;
    serve.cache = CacheFolder(options.source);
    if (serve.rebalance != "off") {
      serve.measure = [kept = KeptSpeeds(options.source)](const MeasuredWith& with) {
        return MeasureMachine(
            {.isa = with.isa, .threads = with.threads, .file = with.file, .kept = kept, .device = with.device});
      };
    }
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
  if (!ring_options.draft_model.empty()) {
    GYRE_ASSIGN_OR_RETURN(ring_options.draft_model, LocateModel(ring_options.draft_model, options.source));
  }
  for (const AdapterFile& adapter : ring_options.open.adapters) {
    const bool taken = adapter.name == ModelName(ring_options.model) ||
                       std::ranges::find(http.aliases, adapter.name) != http.aliases.end();
    if (taken)
      return UsageError("--lora: {} is a name of the model; give the adapter another one, as NAME={}", adapter.name,
                        adapter.path);
  }
  // Workers on the same machine open the same paths.
  const auto make_absolute = [](std::string* at) {
    std::error_code ignored;
    const auto absolute = std::filesystem::absolute(*at, ignored);
    if (!ignored) *at = absolute.string();
  };
  make_absolute(&ring_options.model);
  for (AdapterFile& adapter : ring_options.open.adapters) make_absolute(&adapter.path);
  // It opens before the model loads, so that others can see that the process lives.
  std::unique_ptr<HttpFront> front;
  if (!http.address.empty()) {
    auto opened = HttpFront::Open(http, http_at);
    if (opened.ok()) {
      front = *std::move(opened);
    } else if (http.more_ports == 0) {
      return opened.status();
    } else {  // nobody asked for it, and the ring does without
      Log(LogLevel::kWarn, "http: {}; HTTP is off, --http HOST:PORT puts it elsewhere", Message(opened.status()));
    }
  }
  // It returns the lease after everything else has ended.
  std::unique_ptr<Standby> standby;
  std::shared_ptr<const Model> opened_before;
  if (!options.standby.empty()) {
    // Errors in the file are reported now, and not when the file is needed.
    GYRE_ASSIGN_OR_RETURN(opened_before, OpenModel(ring_options.model, ring_options.ForOpening()));
    GYRE_ASSIGN_OR_RETURN(standby, Standby::Open(options, serve, front.get()));
    serve.cluster = standby->address();
    fmt::print("standing by at {}\n", serve.cluster);
    std::fflush(stdout);
  }
  std::unique_ptr<StateKeeper> state;
  if (standby != nullptr) GYRE_RETURN_IF_ERROR(standby->WaitToLead());
  Status batches = front != nullptr ? front->OpenBatches() : absl::OkStatus();
  // The one that led before may still be about to end.
  for (int tries = 0; standby != nullptr && absl::IsFailedPrecondition(batches) && tries < 25; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    batches = front->OpenBatches();
  }
  if (!batches.ok()) {
    if (standby == nullptr) return batches;
    Log(LogLevel::kError, "batches: {}; this coordinator serves without them", Message(batches));
  }
  if (standby != nullptr || !options.state.empty()) {
    GYRE_ASSIGN_OR_RETURN(state, OpenState(options, standby.get()));
    ring_options.state = state.get();
  }
  LoadingBar bar(ring_options.quiet);
  ring_options.on_load = bar.callback();
  auto opened = Runtime::Open(ring_options);
  bar.Finish();
  GYRE_ASSIGN_OR_RETURN(const auto ring, std::move(opened));
  std::unique_ptr<WeightOffer> weights;
  std::unique_ptr<LinkProber> prober;
  std::unique_ptr<GrpcServer> server;
  // Plans stop first, then calls, then the rest.
  absl::Cleanup stop = [&] {
    ring->cluster().Stop();
    if (front != nullptr) front->Stop();
    if (server != nullptr) server->Stop();
  };
  if (clustered) {
    weights = std::make_unique<WeightOffer>(ring->model_ptr(), ring->weights());
    GYRE_ASSIGN_OR_RETURN(const uint64_t rate, ParseSizeFlag("--weights-rate", options.weights_rate));
    ring->weights()->server().SetRate(rate);
    if (standby != nullptr) standby->StopRefusing();
    GYRE_ASSIGN_OR_RETURN(const Transport transport, ParseTransport(serve.transport));
    prober = std::make_unique<LinkProber>(
        ring->weights(), [&cluster = ring->cluster()](StageProbed probed) { cluster.Probed(std::move(probed)); });
    ring->cluster().SetProber([prober = prober.get(), transport](std::vector<WeightSource> peers) {
      prober->Ask(std::move(peers), kCoordinatorName, transport);
    });
    GYRE_ASSIGN_OR_RETURN(server, OpenGrpc(options, serve, ring_options, ring.get(), weights.get()));
  }
  if (front != nullptr) front->Serve(options, ring_options.model, *ring, state.get(), &tracer);
  InterruptGuard::Begin(front != nullptr ? 2 : 1);
  // This line is for people, and for programs that started the process with port 0.
  if (server != nullptr) fmt::print("listening {}\n", server->address());
  if (front != nullptr) fmt::print("listening {}\n", front->server().url());
  std::fflush(stdout);
  if (!ring_options.quiet && server != nullptr) {
    const char* const proof = serve.identity == nullptr    ? ""
                              : options.cluster_ca.empty() ? " --identity FOLDER"
                                                           : " --token TOKEN";
    fmt::print(stderr, "{}: workers join with `gyre worker --join {}{}`\n", ring_options.model, server->address(),
               proof);
  }
  if (!ring_options.quiet && front != nullptr) {
    fmt::print(stderr, "{}: open {} in a browser; clients of OpenAI's API use {}/v1\n", ring_options.model,
               front->server().url(), front->server().url());
  }
  const auto discovery = server != nullptr && !options.no_discovery ? AnswerSeekers(server->address(), serve) : nullptr;
  ServeUntilStopped(ring.get(), front.get(), serve.identity.get());
  if (front != nullptr) front->Drain();
  std::move(stop).Invoke();
  return trace != nullptr ? trace->Write() : absl::OkStatus();
}

}  // namespace gyre
