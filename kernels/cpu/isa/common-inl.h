// Shared by the files of several instruction sets. All of an -inl.h lies in an unnamed namespace, so that no code of
// one ISA can be linked into another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cpu/isa/isa_ops.h"

namespace gyre::cpu {
namespace {

// Calls f(g) for each g of the sequence, as a compile-time constant.
template <size_t first, size_t... g, typename Fn>
[[gnu::always_inline]] inline void Each(std::index_sequence<g...>, const Fn& f) {
  (f(std::integral_constant<size_t, first + g>()), ...);
}

// Stores the scale of a block and what depends on it and on the sums of q over each 16 elements.
inline void PutScale(const QuantizedRow& to, size_t at, float scale, const int32_t (&sums)[2]) {
  to.scale[at] = scale;
  to.sum[at] = scale * static_cast<float>(sums[0] + sums[1]);
  to.offset[at] = to.times * (to.halves ? sums[0] : sums[0] + sums[1]);
  if (to.halves) to.offset[to.parts + at] = to.times * sums[1];
}

// IsaOps::quantize by means of a function for one block.
template <void (*block)(const float* x, int8_t* q, float* scale, int32_t (&sums)[2])>
void QuantizeRow(const float* x, size_t blocks, const QuantizedRow& to) {
  for (size_t b = 0, at = 0; b < blocks; ++b, at += to.step) {
    float scale;
    int32_t sums[2];
    block(x + b * kBlock, to.q + at * kBlock, &scale, sums);
    PutScale(to, at, scale, sums);
  }
}

// Partial loads and stores for a vector class V without masked loads: through a full register of zeros.
template <typename V, size_t lanes>
struct CopiedTails {
  static auto LoadTail(const float* p, size_t n) { return V::Load(Padded<float>(p, n).all); }
  static auto LoadHalfTail(const uint16_t* p, size_t n) { return V::LoadHalf(Padded<uint16_t>(p, n).all); }
  static auto LoadBf16Tail(const uint16_t* p, size_t n) { return V::LoadBf16(Padded<uint16_t>(p, n).all); }
  static auto LoadInt8Tail(const int8_t* p, size_t n) { return V::LoadInt8(Padded<int8_t>(p, n).all); }
  static auto LoadFp8Tail(const std::byte* p, size_t n) { return V::LoadFp8(Padded<std::byte>(p, n).all); }
  template <typename T>
  static void StoreTail(float* p, T v, size_t n) {
    float all[lanes];
    V::Store(all, v);
    __builtin_memcpy(p, all, n * sizeof(float));
  }

 private:
  template <typename E>
  struct Padded {
    Padded(const E* p, size_t n) { __builtin_memcpy(all, p, n * sizeof(E)); }
    E all[lanes] = {};
  };
};

}  // namespace
}  // namespace gyre::cpu
