// Linked into a program that opens devices by name: with GYRE_TEST_DEVICE=cuda-emulated in the environment it has that
// kind, which is the default.
#include <cstdlib>
#include <string_view>

#include "runtime/devices.h"
#include "tests/testing/cuda_emulated.h"

namespace gyre::testing {
namespace {

[[maybe_unused]] const bool kCudaAdded = [] {
  const char* name = std::getenv("GYRE_TEST_DEVICE");
  if (name == nullptr || std::string_view(name) != "cuda-emulated") return false;
  AddDeviceKind(
      {.name = "cuda-emulated",
       .available = [] { return true; },
       .open = [](const DeviceRequest&) -> StatusOr<std::shared_ptr<Device>> { return MakeEmulatedCudaDevice(); }});
  return true;
}();

}  // namespace
}  // namespace gyre::testing
