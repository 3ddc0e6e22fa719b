// What AVX-512 VBMI computes faster than the rest of AVX-512: 8-bit floats, looked up as bytes.
#include <immintrin.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/isa/avx512_vector-inl.h"
#include "kernels/cpu/isa/common-inl.h"
#include "kernels/cpu/isa/float_kernels-inl.h"
#include "kernels/cpu/isa/isa_ops.h"

namespace gyre::cpu {
namespace {

// The two bytes of the bf16 of each E4M3 without sign, divided by kFp8Unit. Every E4M3 is a bf16.
struct Fp8Table {
  alignas(64) uint8_t low[128], high[128];
};
constexpr Fp8Table MakeFp8Table() {
  Fp8Table table = {};
  for (uint32_t code = 0; code < 128; ++code) {
    const uint32_t exponent = code >> 3, mantissa = code & 7;
    // A subnormal number is mantissa / 8 times the value of the least exponent.
    const float value = exponent == 0 ? static_cast<float>(mantissa) / (1 << 9)
                                      : std::bit_cast<float>((exponent + 127 - 7) << 23 | mantissa << 20);
    const uint32_t bits = code == 127 ? 0x7FC00000 : std::bit_cast<uint32_t>(value / kFp8Unit);
    table.low[code] = static_cast<uint8_t>(bits >> 16);
    table.high[code] = static_cast<uint8_t>(bits >> 24);
  }
  return table;
}
constexpr Fp8Table kFp8Table = MakeFp8Table();

// For register r of 16 floats, which bytes of (low, high) go into the upper half of each float.
struct Fp8Places {
  alignas(64) uint8_t at[4][64];
};
constexpr Fp8Places MakeFp8Places() {
  Fp8Places places = {};
  for (size_t r = 0; r < 4; ++r) {
    for (size_t lane = 0; lane < 16; ++lane) {
      places.at[r][4 * lane + 2] = static_cast<uint8_t>(16 * r + lane);
      places.at[r][4 * lane + 3] = static_cast<uint8_t>(16 * r + lane + 64);
    }
  }
  return places;
}
constexpr Fp8Places kFp8Places = MakeFp8Places();

struct V16Vbmi : V16 {
  struct Halves {
    __m512i low, high;
  };
  static __m512i Get(const uint8_t* p) { return _mm512_load_si512(p); }
  static Halves Look(__m512i codes) {
    // The index has seven bits, so the sign does not count.
    const __m512i low = _mm512_permutex2var_epi8(Get(kFp8Table.low), codes, Get(kFp8Table.low + 64));
    const __m512i high = _mm512_permutex2var_epi8(Get(kFp8Table.high), codes, Get(kFp8Table.high + 64));
    return {low, _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xF8)};  // high | (codes & sign)
  }
  static T Widen(const Halves& h, size_t r) {
    constexpr __mmask64 kUpper = 0xCCCCCCCCCCCCCCCC;
    return _mm512_castsi512_ps(_mm512_maskz_permutex2var_epi8(kUpper, h.low, Get(kFp8Places.at[r]), h.high));
  }
  static void LoadFp8Batch(const std::byte* p, T (&to)[4]) {
    const Halves h = Look(_mm512_loadu_si512(p));
    for (size_t r = 0; r < 4; ++r) to[r] = Widen(h, r);
  }
  static T LoadFp8(const std::byte* p) {
    return Widen(Look(_mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))), 0);
  }
  static T LoadFp8Tail(const std::byte* p, size_t n) {
    return Widen(Look(_mm512_castsi128_si512(_mm_maskz_loadu_epi8(Mask(n), p))), 0);
  }
};

}  // namespace

void DotFp8Vbmi(const float* x, size_t rows, const Fp8Matrix& w, size_t n, size_t k, float* out, size_t ldo) {
  DotFp8<V16Vbmi>(x, rows, w, n, k, out, ldo);
}

}  // namespace gyre::cpu
