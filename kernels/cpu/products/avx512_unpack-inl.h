// Panels unpacked to bytes and f32 scales by AVX-512.
#pragma once

#include <immintrin.h>

#include <utility>

#include "kernels/cpu/isa/common-inl.h"
#include "kernels/cpu/products/avx512_panels-inl.h"

namespace gyre::cpu {
namespace {

// Unpacks units [begin, end) of a panel for many rows, and prefetches as many units from `next` on.
template <typename L>
void Unpack(const std::byte* panel, size_t begin, size_t end, const std::byte* next, std::byte* to) {
  using U = UnpackedOf<L>;
  for (size_t u = begin; u < end; ++u, next += L::kUnitBytes) {
    const std::byte* unit = panel + u * L::kUnitBytes;
    for (size_t line = 0; line < L::kUnitBytes; line += 64) __builtin_prefetch(next + line);
    for (size_t b = 0; b < L::kBlocks; ++b, to += U::kUnitBytes) {
      for (size_t s = 0; s < L::kScalesPerBlock; ++s) _mm512_store_ps(to + s * kPanel * 4, Scales<L>(unit, b, s));
      if constexpr (L::kMin) _mm512_store_ps(to + U::kMins, Mins<L>(unit, b));
      for (size_t s = 0; L::kHalfMin && s < 2; ++s)
        _mm512_store_ps(to + U::kMins + s * kPanel * 4, HalfMins<L>(unit, b, s));
      const BlockCodes<L> codes(unit, b);
      Each<0>(std::make_index_sequence<kBlock / 4>(),
              [&](auto g) { _mm512_store_si512(to + U::kHeader + g() * kGroup, codes.template Group<g()>()); });
    }
  }
}

}  // namespace
}  // namespace gyre::cpu
