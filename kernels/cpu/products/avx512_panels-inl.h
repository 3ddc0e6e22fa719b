// Panels read by AVX-512: codes, scales and minima of 16 columns, one lane per column.
#pragma once

#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/isa/common-inl.h"
#include "kernels/cpu/products/avx512_books-inl.h"
#include "kernels/cpu/products/panels.h"

namespace gyre::cpu {
namespace {

__m256i Load256(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
__m128i Load128(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// A table of 16 signed values with kZero added, repeated in each 128-bit lane.
template <typename L>
__m512i Table() {
  const int8_t* values = L::kIq4 ? kIq4Values : kFp4Doubled;
  const __m128i table = _mm_xor_si128(Load128(reinterpret_cast<const std::byte*>(values)), _mm_set1_epi8(-128));
  return _mm512_broadcast_i32x4(table);
}

// Group g of a block: four unsigned codes of each column.
template <typename L>
__m512i Codes(const std::byte* block, size_t g) {
  if constexpr (L::kBits == 8) {
    return _mm512_loadu_si512(block + g * kGroup);
  } else if constexpr (L::kBits <= 3) {
    const __m512i pairs = _mm512_loadu_si512(block + g / 4 * kGroup);
    const __m512i two =
        _mm512_and_si512(_mm512_srli_epi16(pairs, static_cast<unsigned>(2 * (g % 4))), _mm512_set1_epi8(3));
    if constexpr (L::kBits == 2) return two;
    const __m512i bits = _mm512_loadu_si512(block + L::kPlanes);
    const __m512i there = g < 2 ? _mm512_slli_epi16(bits, static_cast<unsigned>(2 - g))
                                : _mm512_srli_epi16(bits, static_cast<unsigned>(g - 2));
    return _mm512_ternarylogic_epi32(two, there, _mm512_set1_epi8(4), 0xF8);
  } else {
    const __m512i two = _mm512_loadu_si512(block + g % 4 * kGroup);
    const __m512i low = _mm512_and_si512(g < 4 ? two : _mm512_srli_epi16(two, 4), _mm512_set1_epi8(15));
    if constexpr (L::kTable) return _mm512_shuffle_epi8(Table<L>(), low);
    if constexpr (L::kBits == 4) return low;
    const std::byte* plane = block + L::kPlanes;
    // a | (b & c)
    if constexpr (L::kBits == 5) {
      const __m512i bits = _mm512_loadu_si512(plane);
      const __m512i there = g < 4 ? _mm512_slli_epi16(bits, static_cast<unsigned>(4 - g % 4))
                                  : _mm512_srli_epi16(bits, static_cast<unsigned>(g % 4));
      return _mm512_ternarylogic_epi32(low, there, _mm512_set1_epi8(16), 0xF8);
    }
    const __m512i bits = _mm512_loadu_si512(plane + g / 4 * kGroup);
    const __m512i there =
        g % 4 == 3 ? _mm512_srli_epi16(bits, 2) : _mm512_slli_epi16(bits, static_cast<unsigned>(4 - 2 * (g % 4)));
    return _mm512_ternarylogic_epi32(low, there, _mm512_set1_epi8(48), 0xF8);
  }
}

// The codes of one block, group by group; what the groups share is computed once.
template <typename L>
class BlockCodes {
 public:
  [[gnu::always_inline]] BlockCodes(const std::byte* unit, size_t b) : unit_(unit), b_(b), book_(unit, b) {}
  template <size_t g>
  [[gnu::always_inline]] __m512i Group() const {
    const std::byte* block = unit_ + L::kHeader + b_ * L::kBlockBytes;
    if constexpr (L::kBook)
      return book_.template Group<g>();
    else if constexpr (L::kTernary)
      return WholeTernaryGroup<L>(unit_, 8 * b_ + g);
    else if constexpr (L::kBinary)
      return _mm512_maskz_mov_epi8(_cvtu64_mask64(LoadBits<uint64_t>(block + g * kGroup / 8)), _mm512_set1_epi8(2));
    else
      return Codes<L>(block, g);
  }

 private:
  struct None {
    None(const std::byte*, size_t) {}
  };
  const std::byte* unit_;
  size_t b_;
  [[no_unique_address]] std::conditional_t<L::kBook, BookCodes<L>, None> book_;
};

// The weights' scales of part s of block b; below, the minima.
template <typename L>
__m512 Scales(const std::byte* unit, size_t b, size_t s) {
  if constexpr (L::kWide) {
    return _mm512_loadu_ps(unit + (b * L::kScalesPerBlock + s) * kPanel * 4);
  } else if constexpr (L::kBook) {
    const size_t at = L::kScalesPerBlock * b + s;
    const __m512i bytes = _mm512_cvtepu8_epi32(Load128(unit + L::kNibbles + at / 2 * kPanel));
    const __m512i nibbles = _mm512_srli_epi32(bytes, static_cast<unsigned>(at % 2 * 4));
    __m512i steps = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    if constexpr (L::kType == PanelType::kIq1S) steps = _mm512_and_si512(steps, _mm512_set1_epi32(15));
    const __m512 table = _mm512_mul_ps(_mm512_cvtepi32_ps(steps), _mm512_set1_ps(L::kBookUnit));
    return _mm512_mul_ps(_mm512_cvtph_ps(Load256(unit)), _mm512_permutexvar_ps(nibbles, table));
  } else if constexpr (L::kOneScale) {
    return _mm512_cvtph_ps(Load256(unit));
  } else if constexpr (L::kByteScale) {
    const __m128i bytes = Load128(unit + (b * L::kScalesPerBlock + s) * kPanel);
    if constexpr (L::kType == PanelType::kNvFp4) {  // shifted by 7 bits, an E4M3 is the f16 of its value / 256
      const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
      return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(128));
    }
    const __m512i exponent = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_max_epi32(exponent, _mm512_set1_epi32(0x400000))),
                         _mm512_set1_ps(0.5f));
  } else if constexpr (!L::kSuper) {
    return _mm512_cvtph_ps(Load256(unit + b * kPanel * 2));
  } else {
    __m512i bytes = _mm512_cvtepi8_epi32(Load128(unit + L::kMins + (b * L::kScalesPerBlock + s) * kPanel));
    if constexpr (L::kHalfMin) bytes = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
    return _mm512_mul_ps(_mm512_cvtph_ps(Load256(unit)), _mm512_cvtepi32_ps(bytes));
  }
}
template <typename L>
__m512 HalfMins(const std::byte* unit, size_t b, size_t s) {
  if constexpr (L::kWide) return _mm512_loadu_ps(unit + L::kMins + s * kPanel * 4);
  const __m512i bytes = _mm512_cvtepu8_epi32(Load128(unit + L::kMins + (b * 2 + s) * kPanel));
  return _mm512_mul_ps(_mm512_cvtph_ps(Load256(unit + kPanel * 2)), _mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4)));
}
template <typename L>
__m512 Mins(const std::byte* unit, size_t b) {
  if constexpr (L::kWide) {
    return _mm512_loadu_ps(unit + L::kMins);
  } else if constexpr (!L::kSuper) {
    return _mm512_cvtph_ps(Load256(unit + L::kMins + b * kPanel * 2));
  } else {
    const __m512i bytes = _mm512_cvtepu8_epi32(Load128(unit + L::kByteMins + b * kPanel));
    return _mm512_mul_ps(_mm512_cvtph_ps(Load256(unit + kPanel * 2)), _mm512_cvtepi32_ps(bytes));
  }
}

}  // namespace
}  // namespace gyre::cpu
