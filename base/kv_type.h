// The element types of the KV cache.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/named_values.h"

namespace gyre {

// The numbers are those of the wire format (gyre/v1/cluster.proto). q8_0 and q4_0: codes of 8 or 4 bits with one f16
// scale for each 32 elements of a head. q4_0 is of elements that are rotated first (kernels/hadamard.h), q4_0_plain of
// the elements themselves.
enum class KvType : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2, kQ8_0 = 3, kQ4_0Plain = 4, kQ4_0 = 5 };

inline constexpr std::array<std::string_view, 6> kKvTypeNames = {"f32", "f16", "bf16", "q8_0", "q4_0_plain", "q4_0"};
inline constexpr uint64_t kKvBlock = 32;  // elements that share a scale
inline constexpr int kMaxHeadDim = 4096;  // elements of a head; models with larger heads are refused

constexpr std::string_view KvTypeName(KvType type) { return kKvTypeNames[static_cast<size_t>(type)]; }
constexpr std::optional<KvType> ParseKvType(std::string_view name) { return ValueOfName<KvType>(kKvTypeNames, name); }
constexpr bool KvIsRotated(KvType type) { return type == KvType::kQ4_0; }
// The type without rotation whose pages hold the same bytes for what is rotated already.
constexpr KvType KvUnrotated(KvType type) { return KvIsRotated(type) ? KvType::kQ4_0Plain : type; }
// Whether a byte has the codes of two elements.
constexpr bool KvHasNibbles(KvType type) { return KvUnrotated(type) == KvType::kQ4_0Plain; }
constexpr bool KvHasScales(KvType type) { return type == KvType::kQ8_0 || KvHasNibbles(type); }
// The bytes of `elems` elements without their scales. REQUIRES for nibbles: an even number.
constexpr uint64_t KvCodeBytes(KvType type, uint64_t elems) {
  switch (type) {
    case KvType::kF32: return elems * 4;
    case KvType::kF16:
    case KvType::kBf16: return elems * 2;
    case KvType::kQ8_0: return elems;
    case KvType::kQ4_0Plain:
    case KvType::kQ4_0: return elems / 2;
  }
  return 0;
}
// The bytes of `elems` elements. REQUIRES with scales: whole blocks.
constexpr uint64_t KvBytes(KvType type, uint64_t elems) {
  return KvCodeBytes(type, elems) + (KvHasScales(type) ? elems / kKvBlock * 2 : 0);
}
// Nibbles: the byte, counted from the beginning of the head, and the bits in it that hold element d of a vector: the
// first half of a block lies in the low bits, the second half above it.
constexpr uint64_t KvNibbleByte(uint64_t d) { return d / kKvBlock * (kKvBlock / 2) + d % (kKvBlock / 2); }
constexpr int KvNibbleShift(uint64_t d) { return d % kKvBlock < kKvBlock / 2 ? 0 : 4; }

// Calls f.template operator()<KvUnrotated(type)>() for a type that is known only at run time.
template <typename Fn>
void WithUnrotatedKvType(KvType type, const Fn& f) {
  switch (type) {
    case KvType::kF32: return f.template operator()<KvType::kF32>();
    case KvType::kF16: return f.template operator()<KvType::kF16>();
    case KvType::kBf16: return f.template operator()<KvType::kBf16>();
    case KvType::kQ8_0: return f.template operator()<KvType::kQ8_0>();
    case KvType::kQ4_0Plain:
    case KvType::kQ4_0: return f.template operator()<KvType::kQ4_0Plain>();
  }
}

}  // namespace gyre
