// Linked into a program that opens devices by name: it has the kind "cuda-emulated", a GPU for each device that is
// opened. With GYRE_TEST_DEVICE=cuda-emulated in the environment it is the default.
#include <cstdlib>
#include <string_view>

#include "runtime/devices.h"
#include "tests/testing/cuda_emulated.h"
#include "tests/testing/test_device.h"

namespace gyre::testing {
namespace {

constexpr uint64_t kMemory = uint64_t{1} << 30;

bool IsDefault() {
  const char* name = std::getenv("GYRE_TEST_DEVICE");
  return name != nullptr && std::string_view(name) == "cuda-emulated";
}

[[maybe_unused]] const bool kCudaAdded = [] {
  if (IsDefault()) AddedTestDevice() = [] { return MakeEmulatedCudaDevice(); };
  AddDeviceKind({.name = "cuda-emulated",
                 .available = IsDefault,
                 .open = [](const DeviceRequest& request) -> StatusOr<std::shared_ptr<Device>> {
                   const auto faults = std::make_shared<EmulatedFaults>();
                   faults->limit = request.memory != 0 ? request.memory : kMemory;
                   // A process of a ring that loses its GPU in the middle of its work.
                   if (const char* launches = std::getenv("GYRE_EMULATED_GPU_LOST"))
                     faults->lost_after = std::strtoull(launches, nullptr, 10);
                   LastFaults() = faults;
                   return MakeEmulatedCudaDevice(faults, request.graphs);
                 },
                 .find =
                     [] {
                       return FoundDevices{.devices = {{.name = "cuda-emulated",
                                                        .description = "an emulated GPU",
                                                        .total = kMemory,
                                                        .free = kMemory,
                                                        .note = "for tests"}},
                                           .driver = "",
                                           .why_none = ""};
                     },
                 .built = ""});
  return true;
}();

}  // namespace
}  // namespace gyre::testing
