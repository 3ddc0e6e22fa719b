// gyre serve, gyre worker: the processes of a ring on several machines.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <thread>

#include "base/cpus.h"
#include "base/files.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/range.h"
#include "base/trace.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/listen.h"
#include "cli/log_setup.h"
#include "cli/model_source.h"
#include "cli/progress.h"
#include "cli/serve_http.h"
#include "cli/serve_standby.h"
#include "cli/session.h"
#include "coordinator/grpc_server.h"
#include "coordinator/sqlite_store.h"
#include "coordinator/state_keeper.h"
#include "coordinator/trace_json.h"
#include "fmt/core.h"
#include "identity/authority.h"
#include "identity/join_token.h"
#include "limits/machine_speed.h"
#include "runtime/devices.h"
#include "runtime/runtime.h"
#include "transport/discovery.h"
#include "transport/tcp_link.h"
#include "weights/link_prober.h"
#include "weights/weight_offer.h"
#include "worker/join.h"
#include "worker/node.h"

namespace gyre {
namespace {

// Workers that join and leave are logged, unless GYRE_LOG says otherwise.
void TellMore() {
  if (std::getenv("GYRE_LOG") == nullptr) SetLogLevel(LogLevel::kInfo);
}

// "A-B", both ends included; the coordinator knows how many layers there are.
StatusOr<LayerRange> ParseWish(const std::string& text) {
  const auto range = ParseRange(text);
  if (!range || range->last < range->first || range->last == std::numeric_limits<int>::max()) {
    return UsageError("--layers {}: expected A-B, as 0-7", text);
  }
  return LayerRange{range->first, range->last + 1};
}

// Returns 0 for "".
StatusOr<uint64_t> ParseSizeFlag(const char* flag, const std::string& text) {
  if (text.empty()) return uint64_t{0};
  const StatusOr<uint64_t> bytes = ParseSize(text);
  return bytes.ok() ? bytes : AsUsage(Annotate(bytes.status(), flag));
}

// Checks an identity's files once a second, and when it is told to.
class IdentityWatch {
 public:
  // null: there is no identity.
  explicit IdentityWatch(IdentityFolder* identity) : identity_(identity) {
    if (identity_ != nullptr) CatchHangups();
  }
  void Look(bool now) {
    if (identity_ == nullptr || (!now && Clock::now() < next_)) return;
    next_ = After(std::chrono::seconds(1));
    identity_->Refresh(now);
  }

 private:
  IdentityFolder* const identity_;
  Deadline next_ = Clock::now();
};

// The identity in a folder, for a role. null: no folder is named.
StatusOr<std::shared_ptr<IdentityFolder>> OpenIdentity(const std::string& folder, Role role,
                                                       const std::string& revoked) {
  if (folder.empty()) return std::shared_ptr<IdentityFolder>();
  auto identity = IdentityFolder::Open(folder, revoked);
  if (!identity.ok()) return Annotate(identity.status(), "--identity");
  const Principal self = (*identity)->current()->self();
  if (self.role == role) return identity;
  return UsageError("--identity {}: it is the identity of {}, expected one of the role {}", folder, Describe(self),
                    RoleName(role));
}

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

// The address to join: as it was given, or found on the local network. "": the process was stopped meanwhile.
StatusOr<std::string> AddressToJoin(const WorkerCommandOptions& options, bool insecure, const std::string& authority) {
  if (!options.join.empty()) return options.join;
  if (authority.empty() && !insecure) {
    return UsageError(
        "--join HOST:PORT is needed; a coordinator is looked for on the local network only with a --token, an "
        "--identity or --insecure, as whoever answers is believed otherwise");
  }
  if (!options.quiet) fmt::print(stderr, "looking for a coordinator on the local network\n");
  const StatusOr<std::string> found = FindCoordinator(authority, kNoDeadline, InterruptGuard::Interrupted);
  if (absl::IsCancelled(found.status())) return std::string();
  if (found.ok() && !options.quiet) fmt::print(stderr, "found a coordinator at {}\n", *found);
  return found;
}

// The folder for a token's identity, unless --identity names one.
std::string DefaultIdentity(const std::string& name) {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  const char* const home = std::getenv("HOME");
  std::filesystem::path path = config != nullptr && *config != '\0' ? config : "";
  if (path.empty()) path = std::filesystem::path(home != nullptr ? home : ".") / ".config";
  return (path / "gyre" / name).string();
}

// A coordinator that stands by issues no identities, so each is asked in turn.
StatusOr<Identity::Files> JoinAtOneOf(const std::vector<std::string>& addresses, const JoinToken& token,
                                      const std::string& name) {
  StatusOr<Identity::Files> files = Unavailable("no coordinator is named");
  for (const std::string& at : addresses) {
    const auto patience = std::chrono::seconds(addresses.size() > 1 ? 3 : 10);
    files = JoinWithToken(at, token, name, After(patience), InterruptGuard::Interrupted);
    if (!absl::IsUnavailable(files.status()) && !absl::IsDeadlineExceeded(files.status())) break;
  }
  return files;
}

// A worker's identity; if its folder has none, a token gets it one. null: it has none, or was stopped meanwhile.
StatusOr<std::shared_ptr<IdentityFolder>> WorkerIdentity(const WorkerCommandOptions& options, std::string* join) {
  if (options.token.empty()) return OpenIdentity(options.identity, Role::kWorker, "");
  const std::string name = options.name.empty() ? HostName() : options.name;
  if (const Status fits = CheckPrincipalName(name); !fits.ok()) return AsUsage(Annotate(fits, "--name"));
  const std::string folder = options.identity.empty() ? DefaultIdentity(name) : options.identity;
  std::error_code ignored;
  if (std::filesystem::exists(PathIn(folder, kIdentityFile), ignored)) return OpenIdentity(folder, Role::kWorker, "");
  GYRE_ASSIGN_OR_RETURN(const JoinToken token, ParseToken(options.token));
  // The folder is checked first, as a failure to write it would come after the token is used up.
  GYRE_RETURN_IF_ERROR(MakePrivateFolder(folder));
  GYRE_RETURN_IF_ERROR(CheckWritable(folder));
  GYRE_ASSIGN_OR_RETURN(*join, AddressToJoin(options, false, token.fingerprint));
  GYRE_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, ParseAddresses(*join));
  bool told = false;
  while (!InterruptGuard::Interrupted()) {
    const auto files = JoinAtOneOf(addresses, token, name);
    if (files.ok()) {
      GYRE_RETURN_IF_ERROR(WriteIdentity(folder, *files, false));
      if (!options.quiet) fmt::print(stderr, "{}: the identity of worker {}, by the token\n", folder, name);
      return OpenIdentity(folder, Role::kWorker, "");
    }
    const bool absent = absl::IsUnavailable(files.status()) || absl::IsDeadlineExceeded(files.status());
    if (!absent)
      return absl::IsCancelled(files.status()) ? std::shared_ptr<IdentityFolder>()
                                               : StatusOr<std::shared_ptr<IdentityFolder>>(files.status());
    if (!told) Log(LogLevel::kWarn, "waiting for the coordinator, to join with the token: {}", Message(files.status()));
    told = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  return std::shared_ptr<IdentityFolder>();
}

// The file lies in the models' cache, like other data that is worth keeping.
std::string KeptSpeeds(const SourceOptions& source) {
  const std::string folder = CacheFolder(source);
  return folder.empty() ? "" : folder + "/machine-speeds";
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
  if (serve->mirror_kv && options.ring.no_prefix_cache) {
    return UsageError("--mirror-kv with --no-prefix-cache: what was mirrored is found by the prefix cache only");
  }
  GYRE_ASSIGN_OR_RETURN(serve->memory, ParseSizeFlag("--memory", options.memory));
  if (!options.layers.empty()) {
    if (serve->no_local) return UsageError("--layers {} with --no-local: no layers run here", options.layers);
    GYRE_ASSIGN_OR_RETURN(serve->wish, ParseWish(options.layers));
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
  if (standby != nullptr) keeper.write_interval = std::chrono::seconds(1);
  auto state = StateKeeper::Start(*std::move(store), found, keeper);
  if (!state.ok()) return Annotate(state.status(), where);
  if (const size_t open = (*state)->open_requests(); open > 0) {
    Log(LogLevel::kInfo, "term {}: {} requests of before the restart can be taken up", found.term, open);
  }
  return state;
}

// Records events from its construction on, and writes the buffer to the file at its end.
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
  GYRE_ASSIGN_OR_RETURN(const Insecure insecure, ParseInsecure(options.insecure));
  HostPort http_at;
  if (!http.address.empty()) GYRE_RETURN_IF_ERROR(CheckHttp(http, insecure.http, &http_at));
  RuntimeOptions ring_options = options.ring;
  Tracer tracer;
  ring_options.tracer = &tracer;
  std::unique_ptr<TraceFile> trace;
  if (!options.trace.empty()) {
    GYRE_ASSIGN_OR_RETURN(trace, TraceFile::Open(options.trace, tracer));
  }
  if (clustered) {
    const std::string revoked = options.cluster_ca.empty() ? "" : options.cluster_ca + "/" + kRevokedFile;
    GYRE_ASSIGN_OR_RETURN(serve.identity, OpenIdentity(options.identity, Role::kCoordinator, revoked));
    GYRE_RETURN_IF_ERROR(CheckCluster(options, insecure, &serve));
    ring_options.serve = &serve;
    if (!options.standby.empty()) GYRE_RETURN_IF_ERROR(Standby::Check(options));
    if (serve.rebalance != "off") {
      serve.measure = [kept = KeptSpeeds(options.source)](const MeasuredWith& with) {
        return MeasureMachine({.isa = with.isa, .threads = with.threads, .file = with.file, .kept = kept});
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
  // Workers on the same machine open the same path.
  std::error_code ignored;
  const auto absolute = std::filesystem::absolute(ring_options.model, ignored);
  if (!ignored) ring_options.model = absolute.string();
  // It opens before the model loads, so that others can see that the process lives.
  std::unique_ptr<HttpFront> front;
  if (!http.address.empty()) {
    GYRE_ASSIGN_OR_RETURN(front, HttpFront::Open(http, http_at));
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
  if (clustered) {
    weights =
        std::make_unique<WeightOffer>(ring->model_ptr(), WeightCache(CacheFolder(options.source), 0), &ring->port());
    GYRE_ASSIGN_OR_RETURN(const uint64_t rate, ParseSizeFlag("--weights-rate", options.weights_rate));
    weights->server().SetRate(rate);
    if (standby != nullptr) standby->StopRefusing();
    GYRE_ASSIGN_OR_RETURN(const Transport transport, ParseTransport(serve.transport));
    prober = std::make_unique<LinkProber>(
        weights->stock(), [&cluster = ring->cluster()](StageProbed probed) { cluster.Probed(std::move(probed)); });
    ring->cluster().SetProber([prober = prober.get(), transport](std::vector<WeightSource> peers) {
      prober->Ask(std::move(peers), kCoordinatorName, transport);
    });
    GYRE_ASSIGN_OR_RETURN(server, OpenGrpc(options, serve, ring_options, ring.get(), weights.get()));
  }
  if (front != nullptr) front->Serve(ring_options.model, options.version, *ring, &tracer);
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
  // Plans stop first, then calls, then the rest.
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
  GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(options.threads, options.cpus));
  GYRE_ASSIGN_OR_RETURN(
      const auto device,
      OpenDevice({.name = options.device, .isa = options.isa, .threads = team.threads, .cpus = team.cpus}));
  GYRE_ASSIGN_OR_RETURN(const Insecure insecure, ParseInsecure(options.insecure));
  std::string join = options.join;
  GYRE_ASSIGN_OR_RETURN(const auto identity, WorkerIdentity(options, &join));
  if (!options.token.empty() && identity == nullptr) return absl::OkStatus();  // stopped while it waited
  if (join.empty()) {
    const std::string authority = identity != nullptr ? identity->current()->authority() : "";
    GYRE_ASSIGN_OR_RETURN(join, AddressToJoin(options, insecure.cluster, authority));
    if (join.empty()) return absl::OkStatus();
  }
  NodeOptions node{.join = join,
                   .model = options.model,
                   .open = options.open,
                   .name = options.name,
                   .listen = options.listen,
                   .wish = std::nullopt,
                   .device = device,
                   .threads = team.threads,
                   .memory = 0,
                   .wire_types = kAllActivations,
                   .insecure = insecure.ring,
                   .identity = identity,
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
  GYRE_ASSIGN_OR_RETURN(const Isa isa, ParseIsa(options.isa));
  node.measure = [isa, threads = team.threads, kept = KeptSpeeds(options.source)](const std::string& file) {
    return MeasureMachine({.isa = isa, .threads = threads, .file = file, .kept = kept});
  };
  node.other_models = [source = options.source] { return CachedModelPaths(source); };
  const bool logged = !options.log.file.empty() || options.log.format != "text";
  if (!options.quiet) {
    node.say = [logged](const std::string& line) {
      if (logged) return Log(LogLevel::kInfo, "{}", line);
      fmt::print(stderr, "{}\n", line);
    };
  }
  // After SIGTERM the layers go to other members first; Ctrl-C, or a second signal, ends the process at once.
  node.leaves = [] { return InterruptGuard::Terminated(); };
  node.drain_timeout = std::chrono::seconds(options.drain_seconds);
  node.orphan_timeout = std::chrono::seconds(options.orphan_seconds);
  IdentityWatch watch(identity.get());
  Mutex watching;  // several threads of the node ask
  return RunNode(node, [&] {
    MutexLock lock(&watching);
    watch.Look(TakeHangup());
    return InterruptGuard::Count() > (InterruptGuard::Terminated() ? 1 : 0);
  });
}

}  // namespace gyre
