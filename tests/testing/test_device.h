// The device for tests of workers: this machine's processors, or with GYRE_TEST_DEVICE=far in the
// environment a FarDevice around them, or the one that a program adds (cuda_kind.cc).
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string_view>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/testing/far_device.h"

namespace gyre::testing {

inline bool TestsFar() {
  const char* name = std::getenv("GYRE_TEST_DEVICE");
  return name != nullptr && std::string_view(name) == "far";
}

// Makes the device in place of the processors; empty: they are tested.
inline std::function<std::shared_ptr<Device>()>& AddedTestDevice() {
  static std::function<std::shared_ptr<Device>()> make;
  return make;
}

inline std::shared_ptr<Device> TestDevice(Isa isa, int threads) {
  if (AddedTestDevice()) return AddedTestDevice()();
  std::shared_ptr<Device> device = MakeCpuDevice(isa, threads);
  return TestsFar() ? std::make_shared<FarDevice>(std::move(device)) : device;
}

// A device and a queue that the tests of a program share, for pages without a worker.
inline std::shared_ptr<Device> SharedDevice() {
  static const auto device = TestDevice(Isa::kRef, 1);
  return device;
}
inline Backend& SharedQueue() {
  static const auto queue = SharedDevice()->NewBackend();
  return *queue;
}

}  // namespace gyre::testing
