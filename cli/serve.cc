// gyre serve, gyre worker: the processes of a ring over machines.
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <thread>

#include "base/cpus.h"
#include "base/log.h"
#include "base/range.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "coordinator/grpc_server.h"
#include "fmt/core.h"
#include "runtime/runtime.h"
#include "transport/tcp_link.h"
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

StatusOr<uint64_t> ParseMemory(const std::string& text) {
  if (text.empty()) return uint64_t{0};
  const StatusOr<uint64_t> bytes = ParseSize(text);
  return bytes.ok() ? bytes : AsUsage(Annotate(bytes.status(), "--memory"));
}

// A flag with an address to listen at, which may be beyond loopback only with --insecure.
StatusOr<HostPort> ParseListen(const char* flag, const std::string& text, bool insecure) {
  const StatusOr<HostPort> at = ParseHostPort(text);
  if (!at.ok()) return AsUsage(Annotate(at.status(), flag));
  if (!IsLoopback(at->host) && !insecure) {
    return UsageError(
        "{} {}: this address is not loopback, and the cluster is not encrypted; on a network that you "
        "trust, add --insecure",
        flag, text);
  }
  return *at;
}

// Whether the port can be had, before minutes go into loading a model.
Status CheckPort(const char* flag, const HostPort& at) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string where = FormatHostPort(at.host, at.port);
  if (const int error = getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found); error != 0) {
    return Unavailable("{} {}: {}", flag, where, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Unavailable("{} {}: {}", flag, where, std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool bound = bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0;
  const int error = errno;
  close(fd);
  if (bound) return absl::OkStatus();
  return Unavailable("{}: cannot listen at {}: {}", flag, where,
                     error == EADDRINUSE ? "another program has the port" : std::strerror(error));
}

// Until a signal comes.
void ServeUntilStopped(Runtime* runtime) {
  Deadline report = Clock::now();
  while (!InterruptGuard::Interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (Clock::now() < report) continue;
    report = After(std::chrono::milliseconds(500));
    runtime->ReportLoads();
  }
}

}  // namespace

Status ServeCommand(const ServeCommandOptions& options) {
  InterruptGuard guard(0);
  TellMore();
  const bool insecure = options.serve.insecure;
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseListen("--cluster", options.serve.cluster, insecure));
  if (!options.serve.ring.empty()) {
    GYRE_ASSIGN_OR_RETURN(const HostPort ring, ParseListen("--ring", options.serve.ring, insecure));
    GYRE_RETURN_IF_ERROR(CheckPort("--ring", ring));
  }
  GYRE_RETURN_IF_ERROR(CheckPort("--cluster", at));
  if (options.serve.bit_equal && options.ring.wire != "f32") {
    return UsageError(
        "--bit-equal with --wire {}: it rounds at every hop, so the text would depend on where the layers are cut; "
        "expected f32",
        options.ring.wire);
  }
  ServeOptions serve = options.serve;
  GYRE_ASSIGN_OR_RETURN(serve.memory, ParseMemory(options.memory));
  if (!options.layers.empty()) {
    if (serve.no_local) return UsageError("--layers {} with --no-local: no layers run here", options.layers);
    GYRE_ASSIGN_OR_RETURN(serve.wish, ParseWish(options.layers));
  }
  if (serve.ring.empty()) serve.ring = FormatHostPort(at.host, 0);
  RuntimeOptions ring_options = options.ring;
  ring_options.serve = &serve;
  // Workers on the same machine open the same path.
  std::error_code ignored;
  const auto absolute = std::filesystem::absolute(ring_options.model, ignored);
  if (!ignored) ring_options.model = absolute.string();
  LoadingBar bar(ring_options.quiet);
  ring_options.on_load = bar.callback();
  auto opened = Runtime::Open(ring_options);
  bar.Finish();
  GYRE_ASSIGN_OR_RETURN(const auto ring, std::move(opened));
  GrpcServerOptions grpc_options{.address = serve.cluster,
                                 .term = ring->term(),
                                 .version = options.version,
                                 .context = ring->context(),
                                 .kv_type = ring_options.kv_type,
                                 .exact = ring_options.exact,
                                 .open = ring_options.ForOpening()};
  GYRE_ASSIGN_OR_RETURN(
      auto server, GrpcServer::Open(grpc_options, ring->model(), ring->engine(), ring->cluster(), ring->service()));
  InterruptGuard::Begin();
  // For people, and for programs that started it with port 0.
  fmt::print("listening {}\n", server->address());
  std::fflush(stdout);
  if (!ring_options.quiet) {
    fmt::print(stderr, "{}: workers join with `gyre worker --join {}`\n", ring_options.model, server->address());
  }
  ServeUntilStopped(ring.get());
  // No more plans, then no more calls, then the rest.
  ring->cluster().Stop();
  server->Stop();
  return absl::OkStatus();
}

Status WorkerCommand(const WorkerCommandOptions& options) {
  InterruptGuard guard(0);
  InterruptGuard::Begin();
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
  GYRE_ASSIGN_OR_RETURN(node.memory, ParseMemory(options.memory));
  if (!options.quiet) node.say = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  return RunNode(node, &InterruptGuard::Interrupted);
}

}  // namespace gyre
