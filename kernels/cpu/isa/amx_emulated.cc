// AMX tiles emulated in AVX-512, slowly, for tests: the same kernels and, except for denormal numbers, the same bits on
// a processor without AMX.
#include <immintrin.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/products/avx512_panels-inl.h"
#include "kernels/cpu/isa/avx512_vector-inl.h"
#include "kernels/cpu/isa/common-inl.h"
#include "kernels/cpu/isa/exponential-inl.h"
#include "kernels/cpu/products/int8_tiles-inl.h"
#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/products/tile_kernels-inl.h"
#include "kernels/cpu/products/tiles.h"

namespace gyre::cpu {
namespace {

struct alignas(64) Tile {
  std::byte row[kTileRows][64];
  size_t rows, row_bytes;
};
thread_local Tile tiles[8];
thread_local bool configured = false;

struct Emulated {
  // Fills the tiles with bytes that make a mistake visible.
  static void Configure(const TileConfig& config) {
    configured = true;
    std::memset(tiles, 0xFF, sizeof tiles);
    for (size_t t = 0; t < 8; ++t) {
      tiles[t].rows = config.rows[t];
      tiles[t].row_bytes = config.row_bytes[t];
    }
  }
  static void Release() { configured = false; }
  template <int t>
  static void Zero() {
    std::memset(Get(t).row, 0, sizeof Get(t).row);
  }
  template <int t>
  static void Load(const void* p, size_t stride) {
    Zero<t>();
    Tile& tile = Get(t);
    for (size_t r = 0; r < tile.rows; ++r)
      std::memcpy(tile.row[r], static_cast<const std::byte*>(p) + r * stride, tile.row_bytes);
  }
  template <int t>
  static void Store(void* p, size_t stride) {
    const Tile& tile = Get(t);
    for (size_t r = 0; r < tile.rows; ++r)
      std::memcpy(static_cast<std::byte*>(p) + r * stride, tile.row[r], tile.row_bytes);
  }
  template <int c, int a, int b>
  static void DotBf16() {
    const auto [sums, x, w] = Fitting(c, a, b);
    for (size_t r = 0; r < sums.rows; ++r) {
      __m512 even = _mm512_setzero_ps(), odd = even;
      for (size_t i = 0; i < w.rows; ++i) {
        const __m512i xs = Broadcast(x.row[r] + 4 * i), ws = _mm512_load_si512(w.row[i]);
        even = _mm512_fmadd_ps(Low(xs), Low(ws), even);
        odd = _mm512_fmadd_ps(High(xs), High(ws), odd);
      }
      _mm512_store_ps(sums.row[r], _mm512_add_ps(_mm512_load_ps(sums.row[r]), _mm512_add_ps(even, odd)));
    }
  }
  template <int c, int a, int b>
  static void DotInt8() {
    const auto [sums, x, w] = Fitting(c, a, b);
    for (size_t r = 0; r < sums.rows; ++r) {
      __m512i sum = _mm512_load_si512(sums.row[r]);
      for (size_t i = 0; i < w.rows; ++i) {
        const __m512i xs = Broadcast(x.row[r] + 4 * i), ws = _mm512_load_si512(w.row[i]);
        const __m512i even = _mm512_madd_epi16(EvenBytes(xs), EvenBytes(ws)),
                      odd = _mm512_madd_epi16(OddBytes(xs), OddBytes(ws));
        sum = _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
      }
      _mm512_store_si512(sums.row[r], sum);
    }
  }

  template <size_t bits, size_t pair, size_t half>
  static __m512 Floats(__m512i codes) {
    using M = Mantissa<bits>;
    const __m512i columns = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0),
                  odd = _mm512_set1_epi64(int64_t{8} << 32);
    const __m512i both = _mm512_permutexvar_epi32(_mm512_add_epi32(columns, _mm512_set1_epi32(8 * half)), codes);
    const __m512i code = _mm512_and_si512(_mm512_srlv_epi32(both, _mm512_add_epi32(odd, _mm512_set1_epi32(16 * pair))),
                                          _mm512_set1_epi32(255));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(code, 8 * M::at), _mm512_set1_epi32(M::base)));
  }
  static __m512i Joined(__m512 first, __m512 second) {
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(RoundUp(first), 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low),
                              _mm512_cvtepi32_epi16(_mm512_srli_epi32(RoundUp(second), 16)), 1);
  }

 private:
  // Everything that traps here is a fault on the hardware too.
  static Tile& Get(int t) {
    if (!configured) __builtin_trap();
    return tiles[t];
  }
  struct Operands {
    Tile& sums;
    const Tile &x, &w;
  };
  static Operands Fitting(int c, int a, int b) {
    const Operands all{Get(c), Get(a), Get(b)};
    if (all.sums.rows != all.x.rows || all.x.row_bytes != 4 * all.w.rows || all.sums.row_bytes != all.w.row_bytes)
      __builtin_trap();
    return all;
  }
  // Broadcasts four bytes to every column.
  static __m512i Broadcast(const std::byte* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  static __m512i EvenBytes(__m512i v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); }
  static __m512i OddBytes(__m512i v) { return _mm512_srai_epi16(v, 8); }
  static __m512 Low(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static __m512 High(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  }
  // The upper half of each lane becomes bf16, rounded to nearest even; the lower half is meaningless. NaN stays NaN.
  static __m512i RoundUp(__m512 v) {
    const __m512i bits = _mm512_castps_si512(v),
                  odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
  }
};

}  // namespace

const IsaOps* AmxEmulatedOps() {
  static const IsaOps kOps = [] {
    IsaOps ops = *Avx512Ops();
    ops.dot_panels = DotPanels<Emulated, Avx512Ops>;
    ops.tile_rows_from = kTileRows;  // low, so that small tests use them
    ops.tiles = &kTileOps<Emulated>;
    return ops;
  }();
  return &kOps;
}

}  // namespace gyre::cpu
