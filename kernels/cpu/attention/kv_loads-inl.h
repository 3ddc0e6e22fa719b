// Elements of keys and values as vectors of floats, for a vector class V (float_kernels-inl.h). V may have a class
// Nibbles in place of AnyNibbles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/kv_type.h"
#include "kernels/cpu/isa/float_kernels-inl.h"
#include "kernels/cpu/attention/kv_span.h"

namespace gyre::cpu {
namespace {

// Loads up to a register of codes of 4 bits, which lie `shift` bits up in successive bytes.
template <typename V, bool whole>
typename V::T LoadNibbles(const std::byte* from, int shift, size_t n) {
  typedef uint8_t Codes __attribute__((vector_size(V::kLanes)));
  Codes codes{};
  if constexpr (whole)
    __builtin_memcpy(&codes, from, sizeof codes);
  else
    __builtin_memcpy(&codes, from, n);
  codes =
      ((codes >> static_cast<unsigned char>(shift)) & static_cast<unsigned char>(15)) - static_cast<unsigned char>(8);
  return V::LoadInt8(reinterpret_cast<const int8_t*>(&codes));
}

// Reads a register of bytes as two registers of codes of 4 bits times a scale; every product is exact.
template <typename V>
class AnyNibbles {
 public:
  explicit AnyNibbles(float scale) : scale_(V::Broadcast(scale)) {}
  void Load(const std::byte* from, typename V::T& low, typename V::T& high) const {
    low = V::Mul(scale_, LoadNibbles<V, true>(from, 0, V::kLanes));
    high = V::Mul(scale_, LoadNibbles<V, true>(from, 4, V::kLanes));
  }

 private:
  typename V::T scale_;
};
template <typename V>
struct NibblesFor {
  using Type = AnyNibbles<V>;
};
template <typename V>
requires requires { typename V::Nibbles; }
struct NibblesFor<V> {
  using Type = typename V::Nibbles;
};

// Loads up to a register of elements. REQUIRES: a type without scales, or q8_0, whose codes it gives.
template <typename V, KvType type, bool whole = true>
typename V::T LoadElements(const KvSpan& span, size_t at, size_t n = V::kLanes) {
  static_assert(type != KvType::kQ4_0Plain);
  if constexpr (type == KvType::kQ8_0) {
    const auto* from = reinterpret_cast<const int8_t*>(span.values) + at;
    if constexpr (whole)
      return V::LoadInt8(from);
    else
      return V::LoadInt8Tail(from, n);
  } else {
    constexpr FloatType as = type == KvType::kF32   ? FloatType::kF32
                             : type == KvType::kF16 ? FloatType::kF16
                                                    : FloatType::kBf16;
    if constexpr (whole)
      return LoadWeights<V, as>(span.values, at);
    else
      return LoadWeightsTail<V, as>(span.values, at, n);
  }
}

// Loads element d of up to a register of keys, from position j on.
template <typename V, KvType type>
typename V::T LoadKeys(const KvSpan& span, size_t d, size_t stride, size_t j, size_t n) {
  if constexpr (type == KvType::kQ4_0Plain)
    return LoadNibbles<V, false>(span.values + KvNibbleByte(d) * stride + j, KvNibbleShift(d), n);
  else
    return LoadElements<V, type, false>(span, d * stride + j, n);
}

// Loads the scales of block b of up to a register of keys, from position j on.
template <typename V, bool whole>
typename V::T LoadKeyScales(const KvSpan& span, size_t b, size_t stride, size_t j, size_t n) {
  const uint16_t* from = reinterpret_cast<const uint16_t*>(span.scales) + b * stride + j;
  if constexpr (whole)
    return V::LoadHalf(from);
  else
    return V::LoadHalfTail(from, n);
}

// The element that begins register c of a pass from element `at` on. Registers of q4_0 are pairs, whose elements lie in
// the same bytes, half a block apart.
template <typename V, KvType type>
constexpr size_t RegisterAt(size_t at, size_t c) {
  if constexpr (type != KvType::kQ4_0Plain) return at + c * V::kLanes;
  const size_t byte = at / 2 + c / 2 * V::kLanes;
  return byte / (kKvBlock / 2) * kKvBlock + byte % (kKvBlock / 2) + c % 2 * (kKvBlock / 2);
}

// Loads C registers of a value from element `at` on; `first` is the value's first element in the span. `scales` (types
// with scales only): the f32 scales of the span's blocks.
template <typename V, KvType type, size_t C>
[[gnu::always_inline]] inline void LoadValue(const KvSpan& span, size_t first, size_t at, const float* scales,
                                             typename V::T (&v)[C]) {
  if constexpr (type == KvType::kQ4_0Plain) {
    static_assert(C % 2 == 0);
    Each<0>(std::make_index_sequence<C / 2>(), [&](auto pair) {
      const typename NibblesFor<V>::Type nibbles(scales[(first + RegisterAt<V, type>(at, 2 * pair)) / kKvBlock]);
      nibbles.Load(span.values + (first + at) / 2 + pair * V::kLanes, v[2 * pair], v[2 * pair + 1]);
    });
  } else {
    for (size_t c = 0; c < C; ++c) {
      const size_t element = first + at + c * V::kLanes;
      v[c] = LoadElements<V, type>(span, element);
      if constexpr (KvHasScales(type)) v[c] = V::Mul(v[c], V::Broadcast(scales[element / kKvBlock]));
    }
  }
}

}  // namespace
}  // namespace gyre::cpu
