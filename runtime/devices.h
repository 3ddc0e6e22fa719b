// The kinds of devices that this program can compute on, and the choice of one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"

namespace gyre {

// A command's settings for the device of a worker.
struct DeviceRequest {
  std::string name;  // "cpu", "cuda:0"; "" and "auto" = the best that there is
  std::string isa;   // of a CPU: "" = the best that this processor has
  int threads = 1;   // of a CPU
  std::vector<int> cpus;
  uint64_t memory = 0;  // bytes that a GPU reserves; 0 = nine tenths of what it has free
  bool graphs = true;   // of a GPU: steps that come again are launched as one
};

// A device that is there, as far as it can be described without being opened.
struct FoundDevice {
  std::string name;              // as --device takes it
  std::string description;       // for people: the processor, or the GPU and its compute capability
  uint64_t total = 0, free = 0;  // bytes of memory; 0 = not known
  std::string note;              // why it can't be used, or what to expect; "" = nothing
};
struct FoundDevices {
  std::vector<FoundDevice> devices;
  std::string driver;    // what it knows, as "CUDA 13.0"; "" = there is none
  std::string why_none;  // a clause, where there is no device
};

struct DeviceKind {
  std::string name;                 // "cpu": devices of this kind are called so, or so and a number ("cuda:0")
  std::function<bool()> available;  // whether this machine has one, for --device auto
  std::function<StatusOr<std::shared_ptr<Device>>(const DeviceRequest& request)> open;
  std::function<FoundDevices()> find;  // may be empty
  std::string built;                   // for `gyre --version`: "CUDA 13.0 (sm_80 sm_90)"; "" = nothing to say
};
// Adds a kind, which is preferred to those before it. Call it before other threads begin.
void AddDeviceKind(DeviceKind kind);
// In the order in which they were added.
const std::vector<DeviceKind>& DeviceKinds();

// kInvalidArgument: this build has no kind of this name; other errors are the kind's.
StatusOr<std::shared_ptr<Device>> OpenDevice(const DeviceRequest& request);

// The instruction set of this name, or the best for "". kInvalidArgument, kFailedPrecondition (the processor lacks it).
StatusOr<Isa> ParseIsa(const std::string& name);

}  // namespace gyre
