// How much of a device's memory layers may take.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device.h"

namespace gyre {

// Bytes for weights and the memory of sequences. The rest is for the buffers of steps: of the stage that runs, and of
// the next one beside it.
inline uint64_t RoomForLayers(const DeviceRoom& room) {
  constexpr uint64_t kMostForSteps = uint64_t{1} << 30;
  return room.total - std::min<uint64_t>(room.total / 10, kMostForSteps);
}

}  // namespace gyre
