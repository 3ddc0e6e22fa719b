// Codebook types expanded by AVX-512. With VBMI a table of 256 points of which each has a byte is four registers: a
// byte permutation looks up 64 indices in two of them.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/products/avx2_books-inl.h"
#include "kernels/cpu/products/books.h"
#include "kernels/cpu/products/panels.h"

namespace gyre::cpu {
namespace {

#ifdef __AVX512VBMI__

inline __mmask64 Mask64(const std::byte* p) { return _cvtu64_mask64(LoadBits<uint64_t>(p)); }

// The bytes of 64 points of a table. `upper`: the indices' bit 7; `high`: words of their bits from 8 on.
template <size_t points>
[[gnu::always_inline]] inline __m512i LookUp(const uint8_t* table, __m512i index, __mmask64 upper,
                                             const __mmask64* high) {
  if constexpr (points == 256) {
    auto half = [&](const uint8_t* t) {
      return _mm512_permutex2var_epi8(_mm512_load_si512(t), index, _mm512_load_si512(t + 64));
    };
    return _mm512_mask_blend_epi8(upper, half(table), half(table + 128));
  } else {
    constexpr size_t bit = points == 512 ? 0 : points == 1024 ? 1 : 2;
    return _mm512_mask_blend_epi8(high[bit], LookUp<points / 2>(table, index, upper, high),
                                  LookUp<points / 2>(table + points / 2, index, upper, high));
  }
}

// The codes of one block of a codebook type, with 128 added.
template <typename L>
class BookCodes {
 public:
  [[gnu::always_inline]] BookCodes(const std::byte* unit, size_t b) : block_(unit + L::kHeader + b * L::kBlockBytes) {
    const auto& planes = PlanesOf<L>();
    constexpr size_t kPoints = std::remove_reference_t<decltype(planes)>::kPoints;
    for (size_t v = 0; v < kVectors; ++v) {
      const __m512i index = _mm512_loadu_si512(block_ + 64 * v);
      const __mmask64 upper = _mm512_movepi8_mask(index);
      __mmask64 high[3] = {};
      for (size_t h = 0; h < L::kHighBits; ++h) high[h] = Mask64(block_ + L::kHighAt + h * L::kIndexBytes / 8 + 8 * v);
      const __m512i first = LookUp<kPoints>(planes.byte[0], index, upper, high),
                    second = LookUp<kPoints>(planes.byte[1], index, upper, high);
      if constexpr (L::kCoordinates == 8) {
        codes_[0] = first;
        codes_[1] = second;
      } else {  // the 12 bits of each point side by side
        codes_[2 * v] = _mm512_unpacklo_epi8(first, second);
        codes_[2 * v + 1] = _mm512_unpackhi_epi8(first, second);
      }
    }
    if constexpr (L::kSigns == BookSigns::kEven) {
      uint64_t x[3];
      for (size_t m = 0; m < 3; ++m) {
        x[m] = LoadBits<uint64_t>(block_ + L::kSignsAt + 32 + 8 * m);
        odd_[m] = x[m] & 7 * kNibbles;
      }
      odd_[3] = (x[0] >> 3 & kNibbles) | (x[1] >> 2 & 2 * kNibbles) | (x[2] >> 1 & 4 * kNibbles);
      for (size_t m = 0; m < 4; ++m) {
        uint64_t odd = LoadBits<uint64_t>(block_ + L::kSignsAt + 8 * m) ^ odd_[m];
        odd ^= odd >> 1;
        odd ^= odd >> 2;
        odd_[m] |= (odd & kNibbles) << 3;
      }
    }
    if constexpr (L::kSigns == BookSigns::kNone) {
      const __m512i nibbles = _mm512_cvtepu8_epi32(Bytes16(unit + L::kNibbles + b / 2 * kPanel));
      shift_ = Shift(_mm512_test_epi32_mask(nibbles, _mm512_set1_epi32(b % 2 == 0 ? 8 : 128)));
    }
  }

  template <size_t g>
  [[gnu::always_inline]] __m512i Group() const {
    // Each qword of codes has the points of two columns, at these bits; out come the coordinates in the lower bits of
    // bytes. The tables are repeated, so the other bits do not matter.
    constexpr size_t v = L::kCoordinates == 8 ? g % 2 : g / 2;
    const __m512i at =
        _mm512_add_epi8(_mm512_set1_epi64(L::kCoordinates == 8 ? 0x0E0C0A0806040200 : 0x1916131009060300),
                        _mm512_set1_epi8(static_cast<char>(L::kCoordinates == 8 ? 16 * (g / 2) : 32 * (g % 2))));
    const __m512i values = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(at, codes_[v]), Values());
    if constexpr (L::kSigns == BookSigns::kNone) return _mm512_add_epi8(values, shift_);
    if constexpr (L::kSigns == BookSigns::kShift)
      return _mm512_add_epi8(values, Shift(LoadBits<uint16_t>(block_ + L::kSignsAt + 2 * (g / 2))));
    if constexpr (L::kSigns == BookSigns::kAll) return Negated(values, Mask64(block_ + L::kSignsAt + 8 * g));
    if constexpr (L::kSigns == BookSigns::kEven && g % 2 == 0)
      return Negated(values, Mask64(block_ + L::kSignsAt + 4 * g));
    return Negated(values, _cvtu64_mask64(odd_[g / 2]));
  }

 private:
  static constexpr size_t kVectors = 8 / L::kCoordinates;
  static constexpr uint64_t kNibbles = 0x1111111111111111;

  static __m512i Values() {
    using T = PanelType;
    if constexpr (L::kType == T::kIq3Xxs) return _mm512_set1_epi64(static_cast<int64_t>(0xBEB4ACA49C948C84));
    if constexpr (L::kType == T::kIq3S) return _mm512_set1_epi64(static_cast<int64_t>(0x8F8D8B8987858381));
    if constexpr (L::kType == T::kIq1S || L::kType == T::kIq1M) return _mm512_set1_epi32(0x00888078);
    return _mm512_set1_epi32(0x00AB9988);
  }
  // 128 + w becomes 128 - w.
  static __m512i Negated(__m512i v, __mmask64 where) {
    return _mm512_mask_sub_epi8(v, where, _mm512_setzero_si512(), v);
  }
  static __m512i Shift(__mmask16 down) {
    return _mm512_mask_blend_epi32(down, _mm512_set1_epi8(1), _mm512_set1_epi8(-1));
  }

  const std::byte* block_;
  __m512i codes_[2 * kVectors];
  uint64_t odd_[4];
  __m512i shift_;
};

#else

// The same without VBMI, by loads of whole points.
template <typename L>
class BookCodes {
 public:
  [[gnu::always_inline]] BookCodes(const std::byte* unit, size_t b) {
    ExpandBook<L, false>(unit, 0, b, codes_, 64);
    ExpandBook<L, false>(unit, 8, b, codes_ + 32, 64);
  }
  template <size_t g>
  [[gnu::always_inline]] __m512i Group() const {
    return _mm512_load_si512(codes_ + 64 * g);
  }

 private:
  alignas(64) std::byte codes_[8 * 64];
};

#endif

// Group `slot` of a unit's ternary digits: 0, 1 or 2.
template <typename L>
__m512i WholeTernaryGroup(const std::byte* unit, size_t slot) {
#ifdef __AVX512VBMI__
  const uint8_t* table = kBookTables.digit[slot / kTernaryVectors];
  const __m512i bytes = _mm512_loadu_si512(unit + L::kHeader + slot % kTernaryVectors * kGroup);
  return LookUp<256>(table, bytes, _mm512_movepi8_mask(bytes), nullptr);
#else
  return _mm512_inserti64x4(_mm512_castsi256_si512(TernaryGroup<L>(unit, 0, slot)), TernaryGroup<L>(unit, 8, slot), 1);
#endif
}

}  // namespace
}  // namespace gyre::cpu
