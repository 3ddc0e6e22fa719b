// What an error of the CUDA runtime means for a worker. Pure, and without CUDA's headers: runtime_cuda.cc compares the
// numbers with theirs.
#pragma once

#include <cstdint>
#include <string>

namespace gyre::cuda {

// Numbers of cudaError_t.
namespace error {
inline constexpr int kSuccess = 0, kMemory = 2, kInvalidConfiguration = 9, kInvalidValue = 1,
                     kInvalidDeviceFunction = 98, kNoDevice = 100, kNoKernelImageForDevice = 209,
                     kLaunchOutOfResources = 701;
}  // namespace error

// The scope of an error: what it ends.
enum class Severity : uint8_t {
  kNone,
  kMemory,  // of what asked for memory: OutOfDeviceMemory
  kOp,      // of the op, and so of its step: DeviceFailed. The device can be used further
  kDevice,  // of the device: DeviceLost. CUDA returns such an error from every later call ("sticky"), too
};

// `number`: of an error that a launch or a wait returned. One that is not known is kDevice: whether the device can be
// used further is not known either.
inline Severity SeverityOf(int number) {
  switch (number) {
    case error::kSuccess: return Severity::kNone;
    case error::kMemory: return Severity::kMemory;
    case error::kInvalidValue:
    case error::kInvalidConfiguration:
    case error::kInvalidDeviceFunction:
    case error::kNoKernelImageForDevice:
    case error::kLaunchOutOfResources: return Severity::kOp;
    default: return Severity::kDevice;
  }
}

// Version numbers of CUDA: "13.0" for 13000.
inline std::string VersionName(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Why no GPU can be used. `number`: what counting the GPUs returned; `driver`: the newest CUDA that the driver knows, 0
// without a driver; `built`: the CUDA of this build; `count`: of GPUs.
inline std::string WhyNoGpu(int number, int driver, int built, int count) {
  if (driver == 0) return "this machine has no NVIDIA driver";
  if (driver / 1000 < built / 1000)
    return "the driver knows CUDA " + VersionName(driver) + " and is older than this build's CUDA " +
           VersionName(built);
  if (number == error::kNoDevice || (number == error::kSuccess && count == 0)) return "this machine has no NVIDIA GPU";
  return "the driver answers with error " + std::to_string(number);
}

}  // namespace gyre::cuda
