// Panels read by 256-bit vectors: codes, scales and minima of half a panel, eight columns, one lane per column.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "kernels/codes.h"
#include "kernels/cpu/isa/common-inl.h"
#include "kernels/cpu/products/avx2_books-inl.h"
#include "kernels/cpu/products/panels.h"

namespace gyre::cpu {
namespace {

// dpbusd adds the sums of four products of unsigned and signed bytes to 32-bit sums.
#ifdef __AVXVNNI__
constexpr bool kVnni = true;
__m256i AddDots(__m256i sums, __m256i codes, __m256i fours) { return _mm256_dpbusd_avx_epi32(sums, codes, fours); }
#else
constexpr bool kVnni = false;
[[maybe_unused]] __m256i AddDots(__m256i sums, __m256i, __m256i) { return sums; }  // not called
#endif

__m256i Load256(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
__m128i Load128(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
__m128i Load64(const std::byte* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }

// Whether products multiply signed numbers, rather than codes from which kZero is not yet subtracted.
template <typename L>
inline constexpr bool kSigned = !kVnni && L::kSigned;

// Group g of a block for half a panel, eight columns: unsigned codes, or signed numbers if kSigned.
template <typename L>
__m256i Codes(const std::byte* block, size_t g) {
  if constexpr (L::kBits == 8) {
    const __m256i codes = Load256(block + g * kGroup);
    return kSigned<L> ? _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) : codes;
  } else if constexpr (L::kBits <= 3) {
    const __m256i pairs = Load256(block + g / 4 * kGroup);
    const __m256i two = _mm256_and_si256(_mm256_srli_epi16(pairs, static_cast<int>(2 * (g % 4))), _mm256_set1_epi8(3));
    if constexpr (L::kBits == 2) return two;
    const __m256i bits = Load256(block + L::kPlanes);
    const __m256i there =
        g < 2 ? _mm256_slli_epi16(bits, static_cast<int>(2 - g)) : _mm256_srli_epi16(bits, static_cast<int>(g - 2));
    return _mm256_or_si256(two, _mm256_and_si256(there, _mm256_set1_epi8(4)));
  } else {
    const __m256i two = Load256(block + g % 4 * kGroup);
    const __m256i low = _mm256_and_si256(g < 4 ? two : _mm256_srli_epi16(two, 4), _mm256_set1_epi8(15));
    if constexpr (L::kTable) {
      __m128i table = Load128(reinterpret_cast<const std::byte*>(L::kIq4 ? kIq4Values : kFp4Doubled));
      if (!kSigned<L>) table = _mm_xor_si128(table, _mm_set1_epi8(-128));
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), low);
    }
    if constexpr (L::kBits == 4) return low;
    if constexpr (L::kBits == 5) {
      const __m256i bits = Load256(block + L::kPlanes);
      const __m256i there = g < 4 ? _mm256_slli_epi16(bits, static_cast<int>(4 - g % 4))
                                  : _mm256_srli_epi16(bits, static_cast<int>(g % 4));
      return _mm256_or_si256(low, _mm256_and_si256(there, _mm256_set1_epi8(16)));
    }
    const __m256i bits = Load256(block + L::kPlanes + g / 4 * kGroup);
    const __m256i there =
        g % 4 == 3 ? _mm256_srli_epi16(bits, 2) : _mm256_slli_epi16(bits, static_cast<int>(4 - 2 * (g % 4)));
    return _mm256_or_si256(low, _mm256_and_si256(there, _mm256_set1_epi8(48)));
  }
}

// The codes of one block for eight columns from `first` on, group by group.
template <typename L>
class BlockCodes {
 public:
  BlockCodes(const std::byte* unit, size_t first, size_t b) : unit_(unit), first_(first), b_(b) {
    if constexpr (L::kBook) ExpandBook<L, kSigned<L>>(unit, first, b, book_.bytes, 32);
  }
  template <size_t g>
  [[gnu::always_inline]] __m256i Group() const {
    const std::byte* block = unit_ + L::kHeader + b_ * L::kBlockBytes;
    if constexpr (L::kBook)
      return Load256(book_.bytes + 32 * g);
    else if constexpr (L::kTernary)
      return TernaryGroup<L>(unit_, first_, 8 * b_ + g);
    else if constexpr (L::kBinary)
      return _mm256_and_si256(BytesOfBits(LoadBits<uint32_t>(block + g * kGroup / 8 + first_ / 2)),
                              _mm256_set1_epi8(2));
    else
      return Codes<L>(block + first_ * 4, g);
  }

 private:
  struct Bytes {
    alignas(32) std::byte bytes[8 * 32];
  };
  struct None {};
  const std::byte* unit_;
  size_t first_, b_;
  [[no_unique_address]] std::conditional_t<L::kBook, Bytes, None> book_;
};

// The scales of part s of block b for eight columns from `first` on; below, their minima.
template <typename L>
__m256 Scales(const std::byte* unit, size_t first, size_t b, size_t s) {
  if constexpr (L::kBook) {
    const size_t at = L::kScalesPerBlock * b + s;
    const __m256i bytes = _mm256_cvtepu8_epi32(Load64(unit + L::kNibbles + at / 2 * kPanel + first));
    const __m256i nibbles = _mm256_and_si256(_mm256_srli_epi32(bytes, static_cast<int>(at % 2 * 4)),
                                             _mm256_set1_epi32(L::kType == PanelType::kIq1S ? 7 : 15));
    const __m256i steps = _mm256_or_si256(_mm256_slli_epi32(nibbles, 1), _mm256_set1_epi32(1));
    const __m256 d = _mm256_mul_ps(_mm256_cvtph_ps(Load128(unit + first * 2)), _mm256_set1_ps(L::kBookUnit));
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(steps));
  }
  if constexpr (L::kOneScale) return _mm256_cvtph_ps(Load128(unit + first * 2));
  if constexpr (L::kByteScale) {
    const __m128i bytes = Load64(unit + (b * L::kScalesPerBlock + s) * kPanel + first);
    if constexpr (L::kType == PanelType::kNvFp4) {  // shifted by 7 bits, an E4M3 is the f16 of its value / 256
      return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7)), _mm256_set1_ps(128));
    }
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_max_epi32(exponent, _mm256_set1_epi32(0x400000))),
                         _mm256_set1_ps(0.5f));
  }
  if constexpr (L::kWide)
    return _mm256_loadu_ps(reinterpret_cast<const float*>(unit + ((b * L::kScalesPerBlock + s) * kPanel + first) * 4));
  if constexpr (!L::kSuper) return _mm256_cvtph_ps(Load128(unit + (b * kPanel + first) * 2));
  __m256i bytes = _mm256_cvtepi8_epi32(Load64(unit + L::kMins + (b * L::kScalesPerBlock + s) * kPanel + first));
  if constexpr (L::kHalfMin) bytes = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
  return _mm256_mul_ps(_mm256_cvtph_ps(Load128(unit + first * 2)), _mm256_cvtepi32_ps(bytes));
}
template <typename L>
__m256 HalfMins(const std::byte* unit, size_t first, size_t b, size_t s) {
  const __m256i bytes = _mm256_cvtepu8_epi32(Load64(unit + L::kMins + (b * 2 + s) * kPanel + first));
  return _mm256_mul_ps(_mm256_cvtph_ps(Load128(unit + (kPanel + first) * 2)),
                       _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4)));
}
template <typename L>
__m256 Mins(const std::byte* unit, size_t first, size_t b) {
  if constexpr (!L::kSuper) {
    return _mm256_cvtph_ps(Load128(unit + L::kMins + (b * kPanel + first) * 2));
  } else {
    const __m256i bytes = _mm256_cvtepu8_epi32(Load64(unit + L::kByteMins + b * kPanel + first));
    return _mm256_mul_ps(_mm256_cvtph_ps(Load128(unit + (kPanel + first) * 2)), _mm256_cvtepi32_ps(bytes));
  }
}

}  // namespace
}  // namespace gyre::cpu
