// The element types of the KV cache.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gyre {

// The numbers are those of the wire format (gyre/v1/cluster.proto). q8_0: int8 with one f16 scale for each 32 elements
// of a head.
enum class KvType : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2, kQ8_0 = 3 };

inline constexpr std::array<std::string_view, 4> kKvTypeNames = {"f32", "f16", "bf16", "q8_0"};
inline constexpr uint64_t kKvBlock = 32;  // elements that share a scale in q8_0
inline constexpr int kMaxHeadDim = 4096;  // elements of a head; models with larger heads are refused

constexpr std::string_view KvTypeName(KvType type) { return kKvTypeNames[static_cast<size_t>(type)]; }
constexpr std::optional<KvType> ParseKvType(std::string_view name) {
  for (size_t i = 0; i < kKvTypeNames.size(); ++i) {
    if (kKvTypeNames[i] == name) return static_cast<KvType>(i);
  }
  return std::nullopt;
}
// Bytes of so many elements. REQUIRES for q8_0: whole blocks.
constexpr uint64_t KvBytes(KvType type, uint64_t elems) {
  switch (type) {
    case KvType::kF32: return elems * 4;
    case KvType::kF16:
    case KvType::kBf16: return elems * 2;
    case KvType::kQ8_0: return elems + elems / kKvBlock * 2;
  }
  return 0;
}

}  // namespace gyre
