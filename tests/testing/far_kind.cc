// Linked into a program that opens devices by name: with GYRE_TEST_DEVICE=far in the environment it has a kind "far",
// which is the default.
#include "runtime/devices.h"
#include "tests/testing/test_device.h"

namespace gyre::testing {
namespace {

[[maybe_unused]] const bool kAdded = [] {
  if (!TestsFar()) return false;
  AddDeviceKind({.name = "far",
                 .available = [] { return true; },
                 .open = [](const DeviceRequest& request) -> StatusOr<std::shared_ptr<Device>> {
                   DeviceRequest near = request;
                   near.name = "cpu";
                   GYRE_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, OpenDevice(near));
                   return std::make_shared<FarDevice>(std::move(device));
                 }});
  return true;
}();

}  // namespace
}  // namespace gyre::testing
