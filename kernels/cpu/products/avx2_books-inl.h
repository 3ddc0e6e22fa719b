// Codebook types, signs and ternary digits expanded by 256-bit vectors: half a panel, eight columns.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/products/books.h"
#include "kernels/cpu/products/panels.h"

namespace gyre::cpu {
namespace {

inline __m256i Bytes32(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i Bytes16(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
template <typename T>
T LoadBits(const std::byte* p) {
  T v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Bytes of ones where the bit is set, the first byte for the lowest bit.
inline __m256i BytesOfBits(uint32_t bits) {
  const __m256i order = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303),
                each = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i there = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), order);
  return _mm256_cmpeq_epi8(_mm256_and_si256(there, each), each);
}

// BookSigns::kEven: for groups 2 m and 2 m + 1 the bits of eight columns, four bits a column. `signs` has the words of
// the block that begin at these columns.
struct EvenSigns {
  explicit EvenSigns(const std::byte* signs) {
    uint32_t x[3];
    for (size_t m = 0; m < 4; ++m) first[m] = LoadBits<uint32_t>(signs + 8 * m);
    for (size_t m = 0; m < 3; ++m) {
      x[m] = LoadBits<uint32_t>(signs + 32 + 8 * m);
      second[m] = x[m] & 0x77777777;
    }
    second[3] = (x[0] >> 3 & 0x11111111) | (x[1] >> 2 & 0x22222222) | (x[2] >> 1 & 0x44444444);
    for (size_t m = 0; m < 4; ++m) {
      uint32_t odd = first[m] ^ second[m];
      odd ^= odd >> 1;
      odd ^= odd >> 2;
      second[m] |= (odd & 0x11111111) << 3;
    }
  }
  uint32_t first[4], second[4];
};

// A column has all bits set where the shift of its group of eight is down.
template <typename L>
__m256i ShiftedDown(const std::byte* unit, size_t first, size_t b, size_t m) {
  __m256i bits, each;
  if constexpr (L::kSigns == BookSigns::kShift) {
    const std::byte* signs = unit + L::kHeader + b * L::kBlockBytes + L::kSignsAt;
    bits = _mm256_set1_epi32(static_cast<int>(signs[2 * m + first / 8]));
    each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  } else {
    const std::byte* nibbles = unit + L::kNibbles + b / 2 * kPanel + first;
    bits = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(nibbles)));
    each = _mm256_set1_epi32(b % 2 == 0 ? 8 : 128);
  }
  return _mm256_cmpeq_epi32(_mm256_and_si256(bits, each), each);
}

// Writes the groups g of a block for eight columns from `first` on to out + g * stride: with 128 added, or without.
template <typename L, bool is_signed>
void ExpandBook(const std::byte* unit, size_t first, size_t b, std::byte* out, size_t stride) {
  constexpr size_t kEach = 32, kIndices = kEach * (8 / L::kCoordinates);  // index bytes that lie together; all
  const std::byte* block = unit + L::kHeader + b * L::kBlockBytes;
  const auto* points = PointsOf<L>();
  alignas(32) uint16_t index[kIndices];
  const __m256i each = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
  for (size_t i = 0; i < kIndices; i += 16) {
    const size_t at = i / kEach * 64 + first / 8 * kEach + i % kEach;
    __m256i words = _mm256_cvtepu8_epi16(Bytes16(block + at));
    for (size_t h = 0; h < L::kHighBits; ++h) {
      const auto bits = LoadBits<int16_t>(block + L::kHighAt + h * L::kIndexBytes / 8 + at / 8);
      const __m256i there = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(bits), each), each);
      words = _mm256_or_si256(words, _mm256_and_si256(there, _mm256_set1_epi16(static_cast<int16_t>(256 << h))));
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(index + i), words);
  }
  const __m256i half = _mm256_set1_epi8(-128), one = _mm256_set1_epi8(1);
  auto put = [&](size_t g, __m256i v, uint32_t signs) {
    const __m256i negative = BytesOfBits(signs);
    v = _mm256_sub_epi8(_mm256_xor_si256(v, negative), negative);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + g * stride), is_signed ? v : _mm256_xor_si256(v, half));
  };
  const std::byte* signs = block + L::kSignsAt + first / 2;
  if constexpr (L::kCoordinates == 8) {
    auto pair = [&](size_t column, size_t m) {
      const auto at = [&](size_t c) { return reinterpret_cast<const double*>(points + index[BookPlace<8>(c, m)]); };
      return _mm_castpd_ps(_mm_loadh_pd(_mm_load_sd(at(column)), at(column + 1)));
    };
    auto each_pair = [&](const auto& f) {
      for (size_t m = 0; m < 4; ++m) {
        const __m256 a = _mm256_set_m128(pair(4, m), pair(0, m)), c = _mm256_set_m128(pair(6, m), pair(2, m));
        f(m, _mm256_castps_si256(_mm256_shuffle_ps(a, c, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(a, c, 0xDD)));
      }
    };
    if constexpr (L::kSigns == BookSigns::kEven) {
      const EvenSigns even(signs);
      each_pair([&](size_t m, __m256i low, __m256i high) {
        put(2 * m, low, even.first[m]);
        put(2 * m + 1, high, even.second[m]);
      });
    } else if constexpr (L::kSigns == BookSigns::kAll) {
      each_pair([&](size_t m, __m256i low, __m256i high) {
        put(2 * m, low, LoadBits<uint32_t>(signs + 16 * m));
        put(2 * m + 1, high, LoadBits<uint32_t>(signs + 16 * m + 8));
      });
    } else {
      each_pair([&](size_t m, __m256i low, __m256i high) {
        const __m256i shift = _mm256_or_si256(ShiftedDown<L>(unit, first, b, m), one);
        auto put_shifted = [&](size_t g, __m256i v) {
          v = _mm256_add_epi8(v, shift);
          _mm256_store_si256(reinterpret_cast<__m256i*>(out + g * stride), is_signed ? _mm256_xor_si256(v, half) : v);
        };
        put_shifted(2 * m, low);
        put_shifted(2 * m + 1, high);
      });
    }
  } else {
    auto four = [&](size_t g) {
      auto two = [&](size_t column) {
        // The places of four columns' points lie in the first 32 bytes of 64; `index` has only these.
        auto point = [&](size_t c) {
          const size_t place = BookPlace<4>(c, g);
          return uint64_t{points[index[place / 64 * kEach + place % 64]]};
        };
        return static_cast<int64_t>(point(column) | point(column + 1) << 32);
      };
      return _mm256_setr_epi64x(two(0), two(2), two(4), two(6));
    };
    if constexpr (L::kSigns == BookSigns::kEven) {
      const EvenSigns even(signs);
      for (size_t g = 0; g < 8; ++g) put(g, four(g), g % 2 == 0 ? even.first[g / 2] : even.second[g / 2]);
    } else {
      for (size_t g = 0; g < 8; ++g) put(g, four(g), LoadBits<uint32_t>(signs + 8 * g));
    }
  }
}

// Group `slot` of a unit's ternary digits for eight columns from `first` on: 0, 1 or 2.
template <typename L>
__m256i TernaryGroup(const std::byte* unit, size_t first, size_t slot) {
  constexpr int16_t kPowers[] = {1, 3, 9, 27, 81};
  const __m256i bytes = Bytes32(unit + L::kHeader + slot % kTernaryVectors * kGroup + first * 4);
  const __m256i power = _mm256_set1_epi16(kPowers[slot / kTernaryVectors]), low = _mm256_set1_epi16(255);
  const __m256i even = _mm256_and_si256(_mm256_mullo_epi16(_mm256_and_si256(bytes, low), power), low),
                odd = _mm256_slli_epi16(_mm256_mullo_epi16(_mm256_srli_epi16(bytes, 8), power), 8);
  const __m256i fraction = _mm256_or_si256(even, odd);
  // 3 * fraction / 256, rounded down
  auto reaches = [&](int least) {
    const __m256i v = _mm256_set1_epi8(static_cast<char>(least));
    return _mm256_cmpeq_epi8(_mm256_max_epu8(fraction, v), fraction);
  };
  return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(reaches(86), reaches(171)));
}

}  // namespace
}  // namespace gyre::cpu
