// Products of many rows with panels by 256-bit vectors. Weights are unpacked for a
// segment of 512 positions of one panel, or of four, and then all rows pass over it, a few at a time.
//
// The number of vector operations is the limit, on busy cores that of reads. So codes are unpacked and scales become
// f32 once for all rows, and as many rows are taken at a time as there are registers for accumulators.
#pragma once

#include <cassert>

#include "kernels/cpu/products/avx2_few-inl.h"

namespace gyre::cpu {
namespace {

// Signed numbers are unpacked to 16 bits: two products of bytes would saturate a 16-bit sum, and splitting off the
// signs costs more for each row.
template <typename L>
using Unpacked = UnpackedOf<L, kSigned<L> ? 2 : 1>;

// The even and the odd bytes as 16-bit numbers.
struct Widened {
  explicit Widened(__m256i bytes)
      : even(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8)), odd(_mm256_srai_epi16(bytes, 8)) {}
  __m256i even, odd;
};
void Store256(std::byte* to, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), v); }

// Unpacks units [begin, end) of a panel: for each group of four positions the bytes of 16 columns, or the even and then
// the odd ones as 16-bit numbers. Where U has bytes, those of signed numbers have 128 added.
template <typename L, typename U>
void Unpack(const std::byte* panel, size_t begin, size_t end, std::byte* to) {
  auto put = [](std::byte* at, __m256 v) { _mm256_store_ps(reinterpret_cast<float*>(at), v); };
  for (size_t u = begin; u < end; ++u) {
    const std::byte* unit = panel + u * L::kUnitBytes;
    for (size_t b = 0; b < L::kBlocks; ++b, to += U::kUnitBytes) {
      for (size_t first = 0; first < kPanel; first += 8) {
        for (size_t s = 0; s < L::kScalesPerBlock; ++s)
          put(to + (s * kPanel + first) * 4, Scales<L>(unit, first, b, s));
        if constexpr (L::kMin) put(to + U::kMins + first * 4, Mins<L>(unit, first, b));
        for (size_t s = 0; L::kHalfMin && s < 2; ++s)
          put(to + U::kMins + (s * kPanel + first) * 4, HalfMins<L>(unit, first, b, s));
      }
      const BlockCodes<L> first_half(unit, 0, b), second_half(unit, 8, b);
      Each<0>(std::make_index_sequence<kBlock / 4>(), [&](auto g) {
        const __m256i low = first_half.template Group<g()>(), high = second_half.template Group<g()>();
        std::byte* codes = to + U::kHeader + g() * U::kBlockBytes / 8;
        if constexpr (U::kBits == 16) {
          const Widened first(low), second(high);
          Store256(codes, first.even);
          Store256(codes + 32, second.even);
          Store256(codes + 64, first.odd);
          Store256(codes + 96, second.odd);
        } else {
          const __m256i added = _mm256_set1_epi8(kSigned<L> ? -128 : 0);
          Store256(codes, _mm256_xor_si256(low, added));
          Store256(codes + 32, _mm256_xor_si256(high, added));
        }
      });
    }
  }
}

// Where ManyRows gets unpacked units from: panels of a layout, or of a type that is unpacked first.
template <typename L>
struct PanelSource {
  static constexpr size_t unit_bytes = L::kUnitBytes;
  static void unpack(const std::byte* panel, size_t begin, size_t end, std::byte* to) {
    Unpack<L, Unpacked<L>>(panel, begin, end, to);
  }
};
struct UnpackingSource {
  size_t unit_bytes;
  void (*unpack)(const std::byte* panel, size_t begin, size_t end, std::byte* to);
};

// Rows that pass over a segment together. Twice as many accumulators leave enough registers for codes and activations;
// byte codes need as many again for 16-bit sums. Signed numbers take a group of x, and in the last group the rows that
// exist.
constexpr size_t kRows = 4;
// Accumulators for these rows and both halves of a panel. Each has its own name, because gcc keeps arrays that live
// through a loop in memory.
template <size_t R>
struct Accumulators {
  __m256i low0, low1, low2, low3, low4, low5, high0, high1, high2, high3, high4, high5;

  template <typename Fn>
  [[gnu::always_inline]] void Rows(const Fn& f) {
    f(low0, high0, std::integral_constant<size_t, 0>());
    f(low1, high1, std::integral_constant<size_t, 1>());
    if constexpr (R > 2)
      f(low2, high2, std::integral_constant<size_t, 2>()), f(low3, high3, std::integral_constant<size_t, 3>());
    if constexpr (R > 4)
      f(low4, high4, std::integral_constant<size_t, 4>()), f(low5, high5, std::integral_constant<size_t, 5>());
  }
  // Forces them into registers here: otherwise the compiler computes products far ahead, for which no registers are
  // left.
  [[gnu::always_inline]] void Pin() {
    Rows([](__m256i& low, __m256i& high, auto) {
      __m256i a = low, b = high;  // copies: an asm on the members would keep the whole struct in memory
      asm("" : "+x"(a), "+x"(b));
      low = a, high = b;
    });
  }
};

// dots = the sums over `groups` unpacked groups of a block.
template <size_t groups, size_t R>
[[gnu::always_inline]] inline void SumGroups(const int16_t* q, const std::byte* codes, Accumulators<R>& dots) {
  auto each = [&](size_t two, const auto& f) {
    const __m256i low = Load256(codes + 64 * two), high = Load256(codes + 64 * two + 32);
    dots.Rows([&](__m256i& a, __m256i& b, auto r) {
      int32_t pair;
      __builtin_memcpy(&pair, q + r() * kBlock + 2 * two, 4);
      __m256i pairs = _mm256_set1_epi32(pair), one = f(a, _mm256_madd_epi16(low, pairs));
      asm("" : "+x"(one), "+x"(pairs));  // before the other product: there is no register for both
      a = one;
      one = f(b, _mm256_madd_epi16(high, pairs));
      asm("" : "+x"(one), "+r"(q));
      b = one;
    });
  };
  each(0, [](__m256i, __m256i v) { return v; });
#pragma GCC unroll kUnrolled
  for (size_t two = 1; two < 2 * groups; ++two)
    each(two, [](__m256i to, __m256i v) { return _mm256_add_epi32(to, v); });
}
// dots += the sums over groups [begin, end) of byte codes.
template <typename L, size_t begin, size_t end>
[[gnu::always_inline]] inline void AddGroups(const int8_t* q, const std::byte* codes, Accumulators<kRows>& dots) {
  if constexpr (kVnni) {
#pragma GCC unroll kUnrolled
    for (size_t g = begin; g < end; ++g) {
      const __m256i low = Load256(codes + 64 * g), high = Load256(codes + 64 * g + 32);
      dots.Rows([&](__m256i& a, __m256i& b, auto r) {
        const __m256i fours = Four(q + r() * kBlock + 4 * g);
        a = AddDots(a, low, fours);
        b = AddDots(b, high, fours);
      });
      dots.Pin();
    }
    return;
  }
  constexpr size_t kRun = kSafe<L> < end - begin ? kSafe<L> : end - begin;
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (kRun == 2) {  // one row at a time: all dots leave registers for few 16-bit sums
#pragma GCC unroll kUnrolled
    for (size_t g = begin; g < end; g += 2) {
      const std::byte* two = codes + 64 * g;
      const __m256i low = Load256(two), high = Load256(two + 32), next_low = Load256(two + 64),
                    next_high = Load256(two + 96);
      dots.Rows([&](__m256i& a, __m256i& b, auto r) {
        const __m256i fours = Four(q + r() * kBlock + 4 * g), next = Four(q + r() * kBlock + 4 * g + 4);
        auto words = [&](__m256i of_fours, __m256i of_next) {
          return _mm256_add_epi16(_mm256_maddubs_epi16(of_fours, fours), _mm256_maddubs_epi16(of_next, next));
        };
        __m256i sum_a = _mm256_add_epi32(a, _mm256_madd_epi16(words(low, next_low), ones));
        __m256i sum_b = _mm256_add_epi32(b, _mm256_madd_epi16(words(high, next_high), ones));
        asm("" : "+x"(sum_a), "+x"(sum_b), "+r"(q));
        a = sum_a, b = sum_b;
      });
    }
    return;
  }
  for (size_t run = begin; run < end; run += kRun) {
    Accumulators<kRows> words;
    auto each = [&](size_t g, const auto& f) {
      const __m256i low = Load256(codes + 64 * g), high = Load256(codes + 64 * g + 32);
      words.Rows([&](__m256i& a, __m256i& b, auto r) {
        const __m256i fours = Four(q + r() * kBlock + 4 * g);
        f(a, _mm256_maddubs_epi16(low, fours));
        f(b, _mm256_maddubs_epi16(high, fours));
      });
      words.Pin();
    };
    each(run, [](__m256i& to, __m256i v) { to = v; });
#pragma GCC unroll kUnrolled
    for (size_t g = run + 1; g < run + kRun; ++g) each(g, [](__m256i& to, __m256i v) { to = _mm256_add_epi16(to, v); });
    words.Rows([&](__m256i& a, __m256i& b, auto) { a = _mm256_madd_epi16(a, ones), b = _mm256_madd_epi16(b, ones); });
    auto add = [](__m256i& to, __m256i v) { to = _mm256_add_epi32(to, v); };
    add(dots.low0, words.low0), add(dots.low1, words.low1), add(dots.low2, words.low2), add(dots.low3, words.low3);
    add(dots.high0, words.high0), add(dots.high1, words.high1), add(dots.high2, words.high2),
        add(dots.high3, words.high3);
  }
}

// Prefetches one block's share of what is unpacked next. Spread over the blocks of the first rows, it arrives while the
// other rows pass.
template <typename L>
void Prefetch(const std::byte* next, size_t block) {
  constexpr size_t kBytes = L::kUnitBytes / L::kBlocks;
  for (size_t at = 0; next != nullptr && at < kBytes; at += 64) __builtin_prefetch(next + block * kBytes + at, 0, 2);
}

// The rows of one group from `row` on against blocks [begin, end) of one unpacked panel, added to `sums`
// [kRows][kPanel] if begin > 0. `next` is what Prefetch takes, or null.
template <typename L>
void AddBlocks(const Quantized& x, size_t row, const std::byte* unpacked, size_t begin, size_t end,
               const std::byte* next, float* sums) {
  using U = Unpacked<L>;
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  __m256 sum[2][kRows];
  for (size_t h = 0; h < 2; ++h) LoadSums(sums + 8 * h, kPanel, 8, begin == 0, sum[h]);
  size_t at = x.At(row, begin);
  for (size_t b = begin; b < end; ++b, at += kRows, unpacked += U::kUnitBytes) {
    Prefetch<L>(next, b - begin);
    auto load = [&](size_t first) { return V8::Load(reinterpret_cast<const float*>(unpacked) + first); };
    constexpr size_t kMins = U::kMins / 4;
    Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
      Accumulators<kRows> dots;
      dots.Rows([&](__m256i& low, __m256i& high, auto r) { low = high = Offset<L>(x, at + r(), s()); });
      AddGroups<L, s() * kGroups, (s() + 1) * kGroups>(x.q + at * kBlock, unpacked + U::kHeader, dots);
      constexpr size_t low = s() * kPanel, high = low + 8;
      AddPart<L>(
          x, at, s(), load(low), [&] { return load(kMins + low); }, {dots.low0, dots.low1, dots.low2, dots.low3},
          sum[0]);
      AddPart<L>(
          x, at, s(), load(high), [&] { return load(kMins + high); }, {dots.high0, dots.high1, dots.high2, dots.high3},
          sum[1]);
    });
    AddMins<L>(
        x, at, [&] { return load(kMins); }, sum[0]);
    AddMins<L>(
        x, at, [&] { return load(kMins + 8); }, sum[1]);
  }
  for (size_t h = 0; h < 2; ++h) StoreSums(sum[h], 8, sums + 8 * h, kPanel);
}

// The same for signed numbers and the first R rows of a group. Their sums [R][kPanel] stay in memory, because the dots
// take all registers.
template <typename L, size_t R>
[[gnu::noinline]] void AddSigned(const Quantized& x, size_t row, const std::byte* unpacked, size_t begin, size_t end,
                                 const std::byte* next, float* sums) {
  using U = Unpacked<L>;
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  for (size_t v = 0; begin == 0 && v < 2 * R; ++v) V8::Store(sums + 8 * v, V8::Zero());
  const size_t at = x.At(row, begin);
  const int16_t* q = x.wide + at * kBlock;
  const float* scale = x.scale + at;
  for (size_t b = begin; b < end; ++b, q += kRowGroup * kBlock, scale += kRowGroup, unpacked += U::kUnitBytes) {
    Prefetch<L>(next, b - begin);
    for (size_t s = 0; s < kParts; ++s) {
      asm("" : "+r"(sums));  // makes the compiler read the sums from memory again
      Accumulators<R> dots;
      SumGroups<kGroups>(q + 4 * kGroups * s, unpacked + U::kHeader + 2 * kGroup * kGroups * s, dots);
      const float* scales = reinterpret_cast<const float*>(unpacked) + s * kPanel;
      const __m256 low = V8::Load(scales), high = V8::Load(scales + 8);
      dots.Rows([&](__m256i a, __m256i c, auto r) {
        const __m256 by = _mm256_set1_ps(scale[r]);
        auto add = [&](float* to, __m256i dot, __m256 w) {
          V8::Store(to, _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot), w), by, V8::Load(to)));
        };
        add(sums + r * kPanel, a, low);
        add(sums + r * kPanel + 8, c, high);
      });
    }
  }
}

// Rows that pass over a segment before the next one is unpacked: whole groups, and as many as an ordinary prefill step
// has.
constexpr size_t kRowBlock = 516;
static_assert(kRowBlock % kRowGroup == 0 && kRowBlock % kRows == 0);

// Rows [from, to), at most kRowBlock, against up to kSlice panels.
template <typename L, typename Source>
void MultiplySlice(const Source& source, const Quantized& x, size_t from, size_t to, const std::byte* w, size_t panels,
                   size_t columns, float* out, size_t ldo) {
  constexpr size_t kTogether = kSigned<L> ? kRowGroup : kRows,
                   kUnpacked = kCodesSegment / kBlock * Unpacked<L>::kUnitBytes;  // of a panel
  const size_t units = x.blocks / L::kBlocks, segment = kCodesSegment / L::kUnit, stride = units * source.unit_bytes;
  alignas(64) std::byte unpacked[kSlice * kUnpacked];
  // Sums wait here between segments, side by side: in `out` rows are often a power of two apart and would compete for
  // few cache sets.
  alignas(64) float sums[kRowBlock * kSlice * kPanel];
  auto sums_of = [&](size_t row, size_t p) { return sums + ((row - from) * kSlice + p * kTogether) * kPanel; };
  // Calls f(to, sums, n) for each row of a group and each panel: where its sums go, and how many columns exist.
  auto for_each_row = [&](size_t first, auto f) {
    for (size_t row = first; row < to && row < first + kTogether; ++row) {
      for (size_t p = 0, column = 0; p < panels && column < columns; ++p, column += kPanel)
        f(out + row * ldo + column, sums_of(first, p) + (row - first) * kPanel,
          columns - column < kPanel ? columns - column : kPanel);
    }
  };
  for (size_t begin = 0; begin < units; begin += segment) {
    const size_t end = begin + segment < units ? begin + segment : units;
    for (size_t p = 0; p < panels; ++p) source.unpack(w + p * stride, begin, end, unpacked + p * kUnpacked);
    const std::byte* next = end < units ? w + end * source.unit_bytes : w + panels * stride;
    for (size_t row = from; row < to; row += kTogether) {
      // Prefetches the output during the last segment, as these lines come from far.
      if (end == units) for_each_row(row, [](float* at, const float*, size_t) { __builtin_prefetch(at, 1); });
      auto add = AddBlocks<L>;
      if constexpr (kSigned<L>) {
        add = AddSigned<L, kRowGroup>;
        if constexpr (kEveryShape) add = to - row > 4 ? add : to - row > 2 ? AddSigned<L, 4> : AddSigned<L, 2>;
      }
      for (size_t p = 0; p < panels; ++p)
        add(x, row, unpacked + p * kUnpacked, begin * L::kBlocks, end * L::kBlocks,
            row == from ? next + p * stride : nullptr, sums_of(row, p));
      if (end == units) {
        for_each_row(row, [](float* at, const float* sum, size_t n) {
          if (n == kPanel)
            __builtin_memcpy(at, sum, kPanel * sizeof(float));
          else
            __builtin_memcpy(at, sum, n * sizeof(float));
        });
      }
    }
  }
}

// REQUIRES: for signed numbers x.wide in groups of kRowGroup; otherwise x.group == kRows and `rows` a multiple of it.
template <typename L, typename Source>
void ManyRows(const Source& source, const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns,
              float* out, size_t ldo) {
  const size_t stride = x.blocks / L::kBlocks * source.unit_bytes;
  // Few rows and one unpacked panel stay in the first-level cache; with many rows, several panels read x less often.
  const size_t slice = rows < 48 ? 1 : kSlice;
  for (size_t p = 0; p < panels; p += slice) {
    for (size_t row = 0; row < rows; row += kRowBlock) {
      const size_t column = p * kPanel, to = rows - row < kRowBlock ? rows : row + kRowBlock;
      MultiplySlice<L>(source, x, row, to, w + p * stride, panels - p < slice ? panels - p : slice,
                       columns < column ? 0 : columns - column, out + column, ldo);
    }
  }
}

}  // namespace
}  // namespace gyre::cpu
