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
  std::atomic<size_t> limit{size_t{4} << 30}, used{0};  // of memory, in bytes
  std::atomic<bool> refuses{false};                     // the next launch
  std::atomic<bool> refuses_all{false};                 // every launch
  std::atomic<bool> fails{false};                       // the next op, as it runs
  std::atomic<bool> lost{false};
  std::atomic<uint64_t> lost_after{0};  // so many launches; 0 = never
  std::atomic<uint64_t> graphs{0};      // that were launched
};

// Works late: when somebody waits for it, or some time after a call. Ends the process with a sentence where a kernel is
// wrong.
std::shared_ptr<Device> MakeEmulatedCudaDevice(std::shared_ptr<EmulatedFaults> faults = nullptr, bool graphs = true);

// Those of the device that was opened last by the name "cuda-emulated"; null: none was.
std::shared_ptr<EmulatedFaults>& LastFaults();

}  // namespace gyre::testing
