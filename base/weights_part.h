// A part of the description of the model's files (manifest, header) that a coordinator sends to workers without them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gyre {

// A part of the encoded manifest (weights/manifest.h) and the header pieces after it.
struct WeightsPart {
  uint64_t hashed = 0, to_hash = 0;  // bytes: how far the manifest is; hashed < to_hash: nothing else is known yet
  std::array<std::byte, 32> root{};
  uint64_t manifest_bytes = 0, header_bytes = 0;
  std::vector<std::byte> data;  // from the offset that was asked for, at most kWeightsPartBytes
  bool operator==(const WeightsPart&) const = default;
};
inline constexpr uint64_t kWeightsPartBytes = 1 << 20;

}  // namespace gyre
