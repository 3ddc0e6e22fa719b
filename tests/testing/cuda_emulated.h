// The device "cuda-emulated": the backend of GPUs on the emulated one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/device.h"

namespace gyre::testing {

// Faults for tests, of all devices that take them from here.
struct EmulatedFaults {
  std::atomic<size_t> limit{SIZE_MAX}, used{0};  // of memory, in bytes
  std::atomic<bool> refuses{false};              // the next launch
  std::atomic<bool> fails{false};                // the next op, as it runs
  std::atomic<bool> lost{false};
};

// Works late: when somebody waits for it, or some time after a call. Ends the process with a sentence where a kernel is
// wrong.
std::shared_ptr<Device> MakeEmulatedCudaDevice(std::shared_ptr<EmulatedFaults> faults = nullptr);

}  // namespace gyre::testing
