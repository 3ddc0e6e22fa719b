// gyre serve, gyre worker: the processes of a ring over machines.
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <thread>

#include "base/cpus.h"
#include "base/log.h"
#include "base/range.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "coordinator/door.h"
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
    return InvalidArgument("--layers {}: expected A-B, as 0-7", text);
  }
  return LayerRange{range->first, range->last + 1};
}

}  // namespace

Status ServeCommand(const ServeCommandOptions& options) {
  InterruptGuard guard(0);
  TellMore();
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options.serve.cluster));
  if (!IsLoopback(at.host) && !options.serve.insecure) {
    return FailedPrecondition(
        "--cluster {}: not loopback, and the cluster is not encrypted yet: say --insecure on a network that you trust",
        options.serve.cluster);
  }
  if (options.serve.bit_equal && options.ring.wire != "f32") {
    return InvalidArgument(
        "--bit-equal with --wire {}: it rounds at every hop, so the text would depend on where the layers are cut; "
        "expected f32",
        options.ring.wire);
  }
  ServeOptions serve = options.serve;
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
  DoorOptions door_options{.address = serve.cluster,
                           .term = ring->term(),
                           .version = options.version,
                           .context = ring->context(),
                           .kv_type = ring_options.kv_type,
                           .exact = ring_options.exact,
                           .open = ring_options.ForOpening()};
  GYRE_ASSIGN_OR_RETURN(auto door, Door::Open(door_options, ring->model(), ring->engine(), ring->cluster()));
  InterruptGuard::Begin();
  // For people, and for programs that started it with port 0.
  fmt::print("listening {}\n", door->address());
  std::fflush(stdout);
  if (!ring_options.quiet) {
    fmt::print(stderr, "{}: workers join with `gyre worker --join {}`\n", ring_options.model, door->address());
  }
  Deadline report = Clock::now();
  while (!InterruptGuard::Interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (Clock::now() < report) continue;
    report = After(std::chrono::milliseconds(500));
    ring->ReportLoads();
  }
  // No more plans, then no more calls, then the rest.
  ring->cluster().Stop();
  door->Stop();
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
  if (!options.memory.empty()) {
    GYRE_ASSIGN_OR_RETURN(node.memory, ParseSize(options.memory));
  }
  if (!options.quiet) node.say = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  return RunNode(node, &InterruptGuard::Interrupted);
}

}  // namespace gyre
