// The ISA level AMX: prefill by bf16 tiles, many decode rows with 8-bit codes by int8 tiles, everything else by VNNI.
#include <immintrin.h>

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

// The compilers' intrinsics accept only a literal as the number of a tile, in gcc not even a template argument; so
// these functions contain the instructions. Tile registers cannot be named as clobbers; the code here uses no others.
struct Amx {
  // The configuration belongs to the calling thread until Release.
  static void Configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  static void Release() { asm volatile("tilerelease"); }
  template <int t>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(t));
  }
  template <int t>
  static void Load(const void* p, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(t) : "memory");
  }
  template <int t>
  static void Store(void* p, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(t) : "memory");
  }
  template <int c, int a, int b>
  static void DotBf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
  }
  template <int c, int a, int b>
  static void DotInt8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
  }

  // Takes the codes (bytes) of four positions of 16 columns; returns positions 2 pair and 2 pair + 1 of the first or
  // second 8 columns as Mantissa describes.
  template <size_t bits, size_t pair, size_t half>
  static __m512 Floats(__m512i codes) {
    using M = Mantissa<bits>;
    constexpr int kFirst = 32 * half + 2 * pair, kPlace = 8 * M::at;
    // Lane i takes byte kFirst + 4 (i / 2) + i % 2.
    const __m512i columns = _mm512_set_epi32(29, 28, 25, 24, 21, 20, 17, 16, 13, 12, 9, 8, 5, 4, 1, 0);
    const __m512i from = _mm512_slli_epi32(_mm512_add_epi32(columns, _mm512_set1_epi32(kFirst)), kPlace);
    return _mm512_castsi512_ps(
        _mm512_mask_permutexvar_epi8(_mm512_set1_epi32(M::base), 0x1111111111111111u << M::at, from, codes));
  }
  static __m512i Joined(__m512 first, __m512 second) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  }
};

}  // namespace

const IsaOps* AmxOps() {
  static const IsaOps kOps = [] {
    IsaOps ops = *Avx512VnniOps();
    ops.dot_panels = DotPanels<Amx, Avx512VnniOps>;
    ops.tile_rows_from = 64;  // with fewer rows VNNI is faster (bench/experiments.md)
    ops.tiles = &kTileOps<Amx>;
    return ops;
  }();
  return &kOps;
}

}  // namespace gyre::cpu
