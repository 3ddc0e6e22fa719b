// gyre devices: what a model can be computed on.
#include <boost/json.hpp>

#include <algorithm>
#include <string>

#include "base/cpus.h"
#include "base/describe_bytes.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/server_setup.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "limits/machine_limits.h"
#include "limits/machine_speed.h"
#include "runtime/devices.h"

namespace gyre {
namespace {

namespace json = boost::json;

struct Row {
  FoundDevice device;
  MachineSpeed speed;
};

// The processors, as `--device cpu` uses them.
StatusOr<Row> Processors(const std::string& kept) {
  GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(0, ""));
  Row row{.device = {.name = "cpu", .description = bench::MachineText(), .free = AvailableMemory(), .note = ""},
          .speed = MeasureMachine({.isa = DetectIsa(), .threads = team.threads, .file = "", .kept = kept})};
  return row;
}

// A GPU's speed is measured while nothing else uses it; one that can't be opened has none.
MachineSpeed SpeedOf(const FoundDevice& device, const std::string& kept) {
  constexpr uint64_t kEnough = uint64_t{1} << 30;
  const uint64_t memory = device.free == 0 ? kEnough : std::min(kEnough, device.free / 2);
  const auto opened = OpenDevice({.name = device.name, .isa = "", .threads = 1, .cpus = {}, .memory = memory});
  if (!opened.ok()) return {};
  return MeasureMachine({.isa = DetectIsa(), .threads = 1, .file = "", .kept = kept, .device = opened->get()});
}

std::string Describe(const MachineSpeed& speed) {
  if (speed.memory_bytes_per_second <= 0) return "speed not measured";
  return fmt::format("reads {:.0f} GB/s, multiplies {:.2f} T int8/s", speed.memory_bytes_per_second / 1e9,
                     speed.operations_per_second / 1e12);
}

}  // namespace

Status DevicesCommand(const DevicesOptions& options) {
  InterruptGuard guard(kExitInterrupted);
  const std::string kept = KeptSpeeds(options.source);
  std::vector<Row> rows;
  std::vector<std::string> missing;  // kinds that have no device here, each with the reason
  json::object drivers;
  GYRE_ASSIGN_OR_RETURN(Row processors, Processors(kept));
  rows.push_back(std::move(processors));
  bool has_cuda = false;
  for (const DeviceKind& kind : DeviceKinds()) {
    has_cuda = has_cuda || kind.name == "cuda";
    if (!kind.find) continue;
    const FoundDevices found = kind.find();
    if (!found.driver.empty()) drivers[kind.name] = found.driver;
    if (!found.why_none.empty()) missing.push_back(fmt::format("{}: {}", kind.name, found.why_none));
    for (const FoundDevice& device : found.devices) rows.push_back({device, SpeedOf(device, kept)});
  }
  if (!has_cuda) missing.insert(missing.begin(), "cuda: this build has no CUDA");
  if (options.json) {
    json::array list, none;
    for (const Row& row : rows) {
      list.push_back({{"name", row.device.name},
                      {"description", row.device.description},
                      {"memory", row.device.total},
                      {"free", row.device.free},
                      {"memory_bytes_per_second", row.speed.memory_bytes_per_second},
                      {"operations_per_second", row.speed.operations_per_second},
                      {"note", row.device.note}});
    }
    for (const std::string& why : missing) none.emplace_back(why);
    fmt::print("{}\n",
               json::serialize(json::object{
                   {"devices", std::move(list)}, {"drivers", std::move(drivers)}, {"missing", std::move(none)}}));
    return absl::OkStatus();
  }
  for (const Row& row : rows) {
    std::string memory;
    if (row.device.free > 0) memory = fmt::format("; {} free", DescribeBytes(row.device.free));
    if (row.device.total > 0) memory += fmt::format(" of {}", DescribeBytes(row.device.total));
    fmt::print("{:<14} {}{}; {}{}\n", row.device.name, row.device.description, memory, Describe(row.speed),
               row.device.note.empty() ? "" : "; " + row.device.note);
  }
  for (const auto& [kind, driver] : drivers)
    fmt::print("the driver of {} knows {}\n", std::string_view(kind), std::string_view(driver.as_string()));
  for (const std::string& why : missing) fmt::print("{}\n", why);
  return absl::OkStatus();
}

}  // namespace gyre
