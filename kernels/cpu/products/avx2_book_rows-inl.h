// Products of few rows with panels of codebook types by 256-bit vectors, straight from the tables of points: no weight
// is written to memory in between.
//
// A vector has the eight positions of a point for four columns, as the points lie in the tables. The numbers are
// unsigned, as maddubs and dpbusd want them: signs go to the activations, and the points of IQ1 have 9 added.
#pragma once

#include <immintrin.h>

#include <utility>

#include "kernels/cpu/products/avx2_few-inl.h"

namespace gyre::cpu {
namespace {

// The columns of vector `quad` of a panel, two a lane: so that the sums of two vectors, added in pairs, are eight
// columns in order.
constexpr size_t QuadColumn(size_t quad, size_t i) { return quad / 2 * 8 + quad % 2 * 2 + i % 2 + i / 2 * 4; }

// The points of one block, whose vectors are four columns by eight positions.
template <typename L>
class BookQuads {
 public:
  [[gnu::always_inline]] BookQuads(const std::byte* unit, size_t b) : block_(unit + L::kHeader + b * L::kBlockBytes) {
    if constexpr (L::kHighBits > 0) ReadIndices();
    if constexpr (L::kSigns == BookSigns::kEven) ReadEvenSigns();
    if constexpr (L::kSigns == BookSigns::kNone) {
      const __m128i nibbles = Bytes16(unit + L::kNibbles + b / 2 * kPanel);
      down_ = static_cast<unsigned>(_mm_movemask_epi8(_mm_slli_epi16(nibbles, b % 2 == 0 ? 4 : 0)));
    }
  }

  // Positions 8 m to 8 m + 7 of four columns, unsigned: magnitudes, or weights with 9 added.
  template <size_t quad, size_t m>
  [[gnu::always_inline]] __m256i Points() const {
    __m256i v = _mm256_set_m128i(Pair<quad, m, 2>(), Pair<quad, m, 0>());
    if constexpr (!kNegates) {  // 128 + 8 c becomes 9 + 8 c, and one more or less
      uint32_t down = down_;
      if constexpr (L::kSigns == BookSigns::kShift) down = LoadBits<uint16_t>(block_ + L::kSignsAt + 2 * m);
      const __m256i each = _mm256_setr_epi64x(Bit(quad, 0), Bit(quad, 1), Bit(quad, 2), Bit(quad, 3)),
                    bits = _mm256_set1_epi64x(down);
      const __m256i up = _mm256_cmpeq_epi64(_mm256_and_si256(bits, each), _mm256_setzero_si256());
      v = _mm256_sub_epi8(v, _mm256_add_epi8(_mm256_set1_epi8(120), _mm256_and_si256(up, _mm256_set1_epi8(-2))));
    }
    return v;
  }
  // 1 or -1 for each of them.
  template <size_t quad, size_t m>
  [[gnu::always_inline]] __m256i Signs() const {
    const std::byte* signs = L::kSigns == BookSigns::kEven ? even_ + 16 * m : block_ + L::kSignsAt + 16 * m;
    constexpr auto byte = [](size_t i) {  // of eight positions of a column, the bytes that have their bits
      return int64_t{0x01010101} * (QuadColumn(quad, i) / 2) | int64_t{0x01010101} * (QuadColumn(quad, i) / 2 + 8)
                                                                   << 32;
    };
    const __m256i order = _mm256_setr_epi64x(byte(0), byte(1), byte(2), byte(3)),
                  each = _mm256_setr_epi64x(0x0804020108040201, static_cast<int64_t>(0x8040201080402010),
                                            0x0804020108040201, static_cast<int64_t>(0x8040201080402010));
    const __m256i there = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(Bytes16(signs)), order);
    return _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_and_si256(there, each), each), _mm256_set1_epi8(1));
  }
  static constexpr bool kNegates = L::kSigns == BookSigns::kEven || L::kSigns == BookSigns::kAll;
  // This number is added to each weight, so that none is negative.
  static constexpr int kAdded = kNegates ? 0 : 9;

 private:
  static constexpr int64_t Bit(size_t quad, size_t i) { return int64_t{1} << QuadColumn(quad, i); }

  // The indices with their higher bits, in the order of the file's bytes.
  void ReadIndices() {
    const __m256i each =
        _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
#pragma GCC unroll kUnrolled
    for (size_t i = 0; i < L::kIndexBytes; i += 16) {
      __m256i words = _mm256_cvtepu8_epi16(Bytes16(block_ + i));
#pragma GCC unroll kUnrolled
      for (size_t h = 0; h < L::kHighBits; ++h) {
        const auto bits = LoadBits<int16_t>(block_ + L::kHighAt + h * L::kIndexBytes / 8 + i / 8);
        const __m256i there = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(bits), each), each);
        words = _mm256_or_si256(words, _mm256_and_si256(there, _mm256_set1_epi16(static_cast<int16_t>(256 << h))));
      }
      _mm256_store_si256(reinterpret_cast<__m256i*>(index_ + i), words);
    }
    asm("" : "+m"(index_));  // to be read from memory: cut out of the registers, each takes two operations
  }
  // As kAll has them: for each m the words of groups 2 m and 2 m + 1 (EvenSigns says what the file has).
  void ReadEvenSigns() {
    const std::byte* signs = block_ + L::kSignsAt;
    auto bits = [](uint64_t v) { return _mm256_set1_epi64x(static_cast<int64_t>(v)); };
    uint64_t x[3];
    for (size_t m = 0; m < 3; ++m) x[m] = LoadBits<uint64_t>(signs + 32 + 8 * m);
    const uint64_t fourth = (x[0] >> 3 & kNibbles) | (x[1] >> 2 & 2 * kNibbles) | (x[2] >> 1 & 4 * kNibbles);
    const __m256i first = Bytes32(signs);
    __m256i second = _mm256_and_si256(_mm256_setr_epi64x(static_cast<int64_t>(x[0]), static_cast<int64_t>(x[1]),
                                                         static_cast<int64_t>(x[2]), static_cast<int64_t>(fourth)),
                                      bits(7 * kNibbles));
    __m256i odd = _mm256_xor_si256(first, second);
    odd = _mm256_xor_si256(odd, _mm256_srli_epi64(odd, 1));
    odd = _mm256_xor_si256(odd, _mm256_srli_epi64(odd, 2));
    second = _mm256_or_si256(second, _mm256_slli_epi64(_mm256_and_si256(odd, bits(kNibbles)), 3));
    const __m256i even = _mm256_unpacklo_epi64(first, second), uneven = _mm256_unpackhi_epi64(first, second);
    _mm256_store_si256(reinterpret_cast<__m256i*>(even_), _mm256_permute2x128_si256(even, uneven, 0x20));
    _mm256_store_si256(reinterpret_cast<__m256i*>(even_ + 32), _mm256_permute2x128_si256(even, uneven, 0x31));
  }

  [[gnu::always_inline]] size_t Index(size_t place) const {
    return L::kHighBits > 0 ? index_[place] : static_cast<size_t>(block_[place]);
  }
  // Two columns of a quad, from the i-th on.
  template <size_t quad, size_t m, size_t i>
  [[gnu::always_inline]] __m128i Pair() const {
    constexpr size_t a = QuadColumn(quad, i), b = QuadColumn(quad, i + 1);
    if constexpr (L::kCoordinates == 8) {
      const auto* points = reinterpret_cast<const double*>(PointsOf<L>());
      return _mm_castpd_si128(
          _mm_loadh_pd(_mm_load_sd(points + Index(BookPlace<8>(a, m))), points + Index(BookPlace<8>(b, m))));
    } else {
      // A point of four positions has zeros beside it in its table: two reads give a column's eight.
      const std::byte* points = SpreadPointsOf<L>();
      auto at = [&](size_t column, size_t point, size_t byte) {
        return Load64(points + 8 * Index(BookPlace<4>(column, point)) + byte);
      };
      return _mm_unpacklo_epi64(_mm_or_si128(at(a, 2 * m, 4), at(a, 2 * m + 1, 0)),
                                _mm_or_si128(at(b, 2 * m, 4), at(b, 2 * m + 1, 0)));
    }
  }

  static constexpr uint64_t kNibbles = 0x1111111111111111;
  const std::byte* block_;
  alignas(32) uint16_t index_[L::kHighBits > 0 ? L::kIndexBytes : 1];
  alignas(32) std::byte even_[L::kSigns == BookSigns::kEven ? 64 : 1];
  uint32_t down_ = 0;
};

// Number of pairs of products that a 16-bit sum holds: 2 * 127 times the largest point each.
template <typename L>
constexpr size_t kSafePoints = BookQuads<L>::kNegates&& L::kType != PanelType::kIq3S ? 2 : 4;

// R rows of one group, from `row` on, against a panel.
template <typename L, size_t R>
void BookTile(const Quantized& x, size_t row, const std::byte* w, size_t columns, size_t ahead, float* out,
              size_t ldo) {
  constexpr size_t kParts = L::kScalesPerBlock, kEights = kBlock / 8 / kParts;
  using Quads = BookQuads<L>;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 sum[2][R] = {};
  size_t at = x.At(row, 0);
  for (size_t u = 0; u < x.blocks / L::kBlocks; ++u) {
    const std::byte* unit = w + u * L::kUnitBytes;
    for (size_t line = 0; line < L::kHeader; line += 64) __builtin_prefetch(unit + line + ahead);
    for (size_t b = 0; b < L::kBlocks; ++b, at += x.group) {
      const int8_t* q = x.q + at * kBlock;
      for (size_t line = 0; line < L::kBlockBytes; line += 64)
        __builtin_prefetch(unit + L::kHeader + b * L::kBlockBytes + line + ahead);
      const Quads quads(unit, b);
      Each<0>(std::make_index_sequence<2>(), [&](auto half) {
        Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
          __m256i dots[2][R], words[R];
          Each<0>(std::make_index_sequence<2>(), [&](auto quad) {
            for (size_t r = 0; r < R; ++r) dots[quad()][r] = _mm256_setzero_si256();
            Each<s() * kEights>(std::make_index_sequence<kEights>(), [&](auto m) {
              constexpr size_t kQuad = 2 * half() + quad(), kIn = m() - s() * kEights;
              const __m256i points = quads.template Points<kQuad, m()>();
              __m256i signs;
              if constexpr (Quads::kNegates) signs = quads.template Signs<kQuad, m()>();
              for (size_t r = 0; r < R; ++r) {
                __m256i eight =
                    _mm256_set1_epi64x(LoadBits<int64_t>(reinterpret_cast<const std::byte*>(q + r * kBlock + 8 * m())));
                if constexpr (Quads::kNegates) eight = _mm256_sign_epi8(eight, signs);
                __m256i& dot = dots[quad()][r];
                if constexpr (kVnni) {
                  dot = AddDots(dot, points, eight);
                } else {
                  const __m256i product = _mm256_maddubs_epi16(points, eight);
                  words[r] = kIn % kSafePoints<L> == 0 ? product : _mm256_add_epi16(words[r], product);
                  if (kIn % kSafePoints<L> == kSafePoints<L> - 1 || kIn == kEights - 1)
                    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(words[r], ones));
                }
              }
            });
          });
          __m256i eight[R];
          for (size_t r = 0; r < R; ++r) {
            eight[r] = _mm256_hadd_epi32(dots[0][r], dots[1][r]);
            if constexpr (Quads::kAdded != 0) {  // the offset is -kZero times the sum of the activations
              const int32_t less = x.offset[s() * x.parts + at + r] / L::kZero * Quads::kAdded;
              eight[r] = _mm256_add_epi32(eight[r], _mm256_set1_epi32(less));
            }
          }
          AddPart<L>(
              x, at, s(), Scales<L>(unit, 8 * half(), b, s()), [] { return _mm256_setzero_ps(); }, eight, sum[half()]);
        });
      });
    }
  }
  for (size_t half = 0; half < 2; ++half) StoreSums(sum[half], Columns(8 * half, columns), out + 8 * half, ldo);
}

}  // namespace
}  // namespace gyre::cpu
