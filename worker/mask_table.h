// The masks that steps name by number, on the last stage's device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mask_codec.h"
#include "base/step.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace gyre {

// Not thread-safe: its stage owns it.
class MaskTable {
 public:
  // Throws what ops throw (docs/device.md); a mask whose upload failed is unknown. REQUIRES: numbers below kMaxMasks.
  void Set(const std::vector<NumberedMask>& masks, Backend& backend) {
    for (const NumberedMask& mask : masks) {
      if (mask.number >= masks_.size()) masks_.resize(mask.number + 1);
      Entry& entry = masks_[mask.number];
      entry.words = 0;
      uint64_t* to = entry.memory.EnsureCapacity(backend.device(), mask.words.size());
      backend.CopyIn(mask.words.data(), to, mask.words.size() * sizeof *to);
    }
    backend.Finish();
    for (const NumberedMask& mask : masks) masks_[mask.number].words = mask.words.size();
  }
  // On the device; empty: there is none with this number.
  std::span<const uint64_t> Find(uint32_t number) const {
    if (number >= masks_.size()) return {};
    return {masks_[number].memory.data(), masks_[number].words};
  }

 private:
  struct Entry {
    DeviceBuffer<uint64_t> memory;
    size_t words = 0;
  };
  std::vector<Entry> masks_;
};

}  // namespace gyre
