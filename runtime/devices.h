// The kinds of devices that this program can compute on, and the choice of one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"

namespace gyre {

// A command's settings for the device of a worker.
struct DeviceRequest {
  std::string name;  // "cpu", "cuda:0"; "" = the best that there is
  std::string isa;   // of a CPU: "" = the best that this processor has
  int threads = 1;   // of a CPU
  std::vector<int> cpus;
};

struct DeviceKind {
  std::string name;                 // "cpu": devices of this kind are called so, or so and a number ("cuda:0")
  std::function<bool()> available;  // whether this machine has one
  std::function<StatusOr<std::shared_ptr<Device>>(const DeviceRequest& request)> open;
};
// Adds a kind, which is preferred to those before it. Call it before other threads begin.
void AddDeviceKind(DeviceKind kind);

// kInvalidArgument: this build has no kind of this name; other errors are the kind's.
StatusOr<std::shared_ptr<Device>> OpenDevice(const DeviceRequest& request);

// The instruction set of this name, or the best for "". kInvalidArgument, kFailedPrecondition (the processor lacks it).
StatusOr<Isa> ParseIsa(const std::string& name);

}  // namespace gyre
