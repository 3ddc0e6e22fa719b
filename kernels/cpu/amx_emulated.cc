// AMX's tiles in AVX-512, slowly: the same kernels and, but for denormal numbers, the same bits on a processor without them. For tests.
#include <immintrin.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/tiles.h"

namespace gyre::cpu {
namespace {

#include "kernels/cpu/avx512_panels-inl.h"
#include "kernels/cpu/common-inl.h"
#include "kernels/cpu/tile_kernels-inl.h"

struct alignas(64) Tile {
  std::byte row[kTileRows][64];
};
thread_local Tile tiles[8];
thread_local bool configured = false;

struct Emulated {
  // Tiles begin with what a mistake would show.
  static void Configure() {
    configured = true;
    std::memset(tiles, 0xFF, sizeof tiles);
  }
  static void Release() { configured = false; }
  template <int t>
  static void Zero() {
    Get(t) = {};
  }
  template <int t>
  static void Load(const void* p, size_t stride) {
    for (size_t r = 0; r < kTileRows; ++r) std::memcpy(Get(t).row[r], static_cast<const std::byte*>(p) + r * stride, 64);
  }
  template <int t>
  static void Store(void* p, size_t stride) {
    for (size_t r = 0; r < kTileRows; ++r) std::memcpy(static_cast<std::byte*>(p) + r * stride, Get(t).row[r], 64);
  }
  template <int c, int a, int b>
  static void DotBf16() {
    Tile &sums = Get(c), &x = Get(a), &w = Get(b);
    for (size_t r = 0; r < kTileRows; ++r) {
      __m512 even = _mm512_setzero_ps(), odd = even;
      for (size_t i = 0; i < 16; ++i) {
        int32_t pair;
        std::memcpy(&pair, x.row[r] + 4 * i, 4);
        const __m512i xs = _mm512_set1_epi32(pair), ws = _mm512_load_si512(w.row[i]);
        even = _mm512_fmadd_ps(Low(xs), Low(ws), even);
        odd = _mm512_fmadd_ps(High(xs), High(ws), odd);
      }
      _mm512_store_ps(sums.row[r], _mm512_add_ps(_mm512_load_ps(sums.row[r]), _mm512_add_ps(even, odd)));
    }
  }

  static __m512i Pairs(__m512 low, __m512 high) {
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(RoundUp(low), 16), RoundUp(high), _mm512_set1_epi32(static_cast<int>(0xFFFF0000)), 0xF8);
  }
  static __m512i Joined(__m512 first, __m512 second) {
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(RoundUp(first), 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm512_cvtepi32_epi16(_mm512_srli_epi32(RoundUp(second), 16)), 1);
  }

 private:
  static Tile& Get(int t) {
    if (!configured) __builtin_trap();  // on hardware this is a fault too
    return tiles[t];
  }
  static __m512 Low(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static __m512 High(__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)))); }
  // The upper half of each lane is bf16 to the nearest even, the lower is left over. NaN stay NaN.
  static __m512i RoundUp(__m512 v) {
    const __m512i bits = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
  }
};

}  // namespace

const IsaOps* AmxEmulatedOps() {
  static const IsaOps kOps = [] {
    IsaOps ops = *Avx512Ops();
    ops.tiles = &kTileOps<Emulated>;
    return ops;
  }();
  return &kOps;
}

}  // namespace gyre::cpu
