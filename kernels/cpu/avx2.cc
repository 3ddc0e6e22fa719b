// AVX2, FMA, F16C.
#include <immintrin.h>

#include <cassert>
#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/isa_ops.h"

namespace gyre::cpu {
namespace {

#include "kernels/cpu/avx2_panels-inl.h"
#include "kernels/cpu/common-inl.h"

struct V8 : CopiedTails<V8, 8> {
  using T = __m256;
  static constexpr size_t kLanes = 8;
  static constexpr size_t kTileRows = 3, kTileColumns = 4, kPages = 2;
  static T Zero() { return _mm256_setzero_ps(); }
  static T Load(const float* p) { return _mm256_loadu_ps(p); }
  static T LoadHalf(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static T LoadBf16(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static T LoadInt8(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))); }
  static T Broadcast(float f) { return _mm256_set1_ps(f); }
  static T Fma(T a, T b, T c) { return _mm256_fmadd_ps(a, b, c); }
  static T Add(T a, T b) { return _mm256_add_ps(a, b); }
  static T Mul(T a, T b) { return _mm256_mul_ps(a, b); }
  static T Div(T a, T b) { return _mm256_div_ps(a, b); }
  static T Max(T a, T b) { return _mm256_max_ps(a, b); }
  static T Min(T a, T b) { return _mm256_min_ps(a, b); }
  static T Round(T a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static T TimesPowerOf2(T a, T n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(exponent));
  }
  static void Store(float* p, T v) { _mm256_storeu_ps(p, v); }
  static float Sum(T v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
};

#include "kernels/cpu/float_kernels-inl.h"
#include "kernels/cpu/attention_kernels-inl.h"

inline void Quantize(const float* x, int8_t* q, float* scale, int32_t (&sums)[2]) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 v[4];
  __m256 max = _mm256_setzero_ps();
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    max = _mm256_max_ps(max, _mm256_andnot_ps(sign, v[i]));
  }
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  const float amax = _mm_cvtss_f32(m);
  *scale = amax / 127.0f;
  const __m256 inverse = _mm256_set1_ps(amax > 0 ? 127.0f / amax : 0.0f);
  for (int half = 0; half < 2; ++half) {
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * half], inverse));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * half + 1], inverse));
    // Packing works within 128-bit lanes: elements 0-3 8-11 | 4-7 12-15.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * half), bytes);
    const __m256i pairs = _mm256_add_epi32(low, high);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    sums[half] = _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
  }
}

// How many products of a code and an activation, twice, a 16-bit sum holds.
template <typename L>
constexpr size_t kSafe = kSigned<L> ? 1 : L::kBits == 6 ? 2 : L::kBits == 5 ? 4 : 8;

// Four activations for every column.
__m256i Four(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm256_set1_epi32(four);
}

// sum[r] += part s of block b, for eight columns: the exact dots, converted, times the weights' scale, times the activations'.
template <typename L, size_t R>
[[gnu::always_inline]] inline void AddPart(const Quantized& x, size_t at, const std::byte* unit, size_t first, size_t b, size_t s,
                                           const __m256i (&dots)[R], __m256 (&sum)[R]) {
  const __m256 scales = Scales<L>(unit, first, b, s);
  const float* scale = x.scale + at;
  Each<0>(std::make_index_sequence<R>(), [&](auto r) {
    sum[r] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dots[r]), scales), _mm256_set1_ps(scale[r]), sum[r]);
  });
  if constexpr (L::kHalfMin) {
    const __m256 mins = HalfMins<L>(unit, first, b, s);
    const int32_t* half = x.offset + s * x.parts + at;
    Each<0>(std::make_index_sequence<R>(), [&](auto r) { sum[r] = _mm256_fmadd_ps(mins, _mm256_set1_ps(scale[r] * static_cast<float>(half[r])), sum[r]); });
  }
}
template <typename L, size_t R>
[[gnu::always_inline]] inline void AddMins(const Quantized& x, size_t at, const std::byte* unit, size_t first, size_t b, __m256 (&sum)[R]) {
  if constexpr (L::kMin) {
    const __m256 mins = Mins<L>(unit, first, b);
    Each<0>(std::make_index_sequence<R>(), [&](auto r) { sum[r] = _mm256_fmadd_ps(mins, _mm256_set1_ps(x.sum[at + r]), sum[r]); });
  }
}
// What an integer sum begins with: the codes' zero, taken off.
template <typename L>
__m256i Offset(const Quantized& x, size_t at, size_t s) {
  return kSigned<L> || L::kHalfMin ? _mm256_setzero_si256() : _mm256_set1_epi32(x.offset[s * x.parts + at]);
}

// Eight columns of R rows of the output, of which n exist.
template <size_t R>
void LoadSums(const float* out, size_t ldo, size_t n, bool first, __m256 (&sum)[R]) {
  for (size_t r = 0; r < R; ++r) sum[r] = first ? V8::Zero() : n == 8 ? V8::Load(out + r * ldo) : V8::LoadTail(out + r * ldo, n);
}
template <size_t R>
void StoreSums(const __m256 (&sum)[R], size_t n, float* out, size_t ldo) {
  for (size_t r = 0; r < R; ++r) {
    if (n == 8) V8::Store(out + r * ldo, sum[r]);
    else V8::StoreTail(out + r * ldo, sum[r], n);
  }
}
// Of eight columns, how many exist.
size_t Columns(size_t column, size_t columns) { return columns < column ? 0 : columns - column < 8 ? columns - column : 8; }

// Sanitized, what is unrolled takes a compiler minutes.
#ifdef GYRE_FEW_TILES
constexpr bool kEveryShape = false;
constexpr int kHalves = 1, kUnrolled = 1;
#else
constexpr bool kEveryShape = true;
constexpr int kHalves = 2, kUnrolled = 16;
#endif

// Few rows, as codes come from memory. R rows of one group, from `row` on, against up to kSlice panels, which are several streams, in different pages.
constexpr size_t kSlice = 4;
template <typename L, size_t R>
void StreamTile(const Quantized& x, size_t row, const std::byte* w, size_t stride, size_t panels, size_t columns, float* out, size_t ldo) {
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 sum[2 * kSlice][R];
  for (auto& half : sum) LoadSums(out, ldo, 0, true, half);
  size_t at = x.At(row, 0);
  for (size_t u = 0; u < x.blocks / L::kBlocks; ++u) {
    for (size_t b = 0; b < L::kBlocks; ++b, at += x.group) {
      const int8_t* q = x.q + at * kBlock;
      for (size_t p = 0; p < panels; ++p) {
        const std::byte* unit = w + p * stride + u * L::kUnitBytes;
        for (size_t line = 0; line < L::kBlockBytes; line += 64) __builtin_prefetch(unit + L::kHeader + b * L::kBlockBytes + line + 2048);
#pragma GCC unroll kHalves
        for (size_t half = 0; half < 2; ++half) {
          const size_t first = 8 * half;
          const std::byte* block = unit + L::kHeader + b * L::kBlockBytes + first * 4;
          Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
            __m256i dots[R], words[R];
            for (size_t r = 0; r < R; ++r) dots[r] = Offset<L>(x, at + r, s());
            Each<s() * kGroups>(std::make_index_sequence<kGroups>(), [&](auto g) {
              const __m256i codes = Codes<L>(block, g());
              const __m256i magnitude = kSigned<L> ? _mm256_abs_epi8(codes) : codes;
              for (size_t r = 0; r < R; ++r) {
                const __m256i fours = Four(q + r * kBlock + 4 * g());
                const __m256i product = _mm256_maddubs_epi16(magnitude, kSigned<L> ? _mm256_sign_epi8(fours, codes) : fours);
                words[r] = g() % kSafe<L> == 0 || g() == s() * kGroups ? product : _mm256_add_epi16(words[r], product);
                if (g() % kSafe<L> == kSafe<L> - 1 || g() == (s() + 1) * kGroups - 1)
                  dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(words[r], ones));
              }
            });
            AddPart<L>(x, at, unit, first, b, s(), dots, sum[2 * p + half]);
          });
          AddMins<L>(x, at, unit, first, b, sum[2 * p + half]);
        }
      }
    }
  }
  for (size_t half = 0; half < 2 * panels; ++half) StoreSums(sum[half], Columns(8 * half, columns), out + 8 * half, ldo);
}

// Many rows: codes are unpacked, a segment of 512 positions of four panels at a time, and all rows pass over them. Numbers of 16 bits where
// they are signed: two products of bytes would not fit a sum of 16 bits, and splitting signs off costs more for each row.
constexpr size_t kCodesSegment = 512;
template <typename L>
constexpr size_t kCodesBytes = kPanel * kBlock * (kSigned<L> ? 2 : 1);  // a block

// Even and odd bytes, as 16-bit numbers.
struct Widened {
  explicit Widened(__m256i bytes) : even(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8)), odd(_mm256_srai_epi16(bytes, 8)) {}
  __m256i even, odd;
};
void Store256(std::byte* to, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); }

// Units [begin, end) of a panel: for each group of four positions 16 columns' bytes, or their even and then their odd ones. What is unpacked
// `next`, as many units, is asked for: it comes from memory while the rows pass over these.
template <typename L>
void Unpack(const std::byte* panel, size_t begin, size_t end, const std::byte* next, std::byte* to) {
  for (size_t u = begin; u < end; ++u) {
    for (size_t b = 0; b < L::kBlocks; ++b, to += kCodesBytes<L>) {
      const size_t at = L::kHeader + b * L::kBlockBytes;
      const std::byte* block = panel + u * L::kUnitBytes + at;
      for (size_t line = 0; line < L::kBlockBytes; line += 64) __builtin_prefetch(next + (u - begin) * L::kUnitBytes + at + line, 0, 2);
      Each<0>(std::make_index_sequence<kBlock / 4>(), [&](auto g) {
        const __m256i low = Codes<L>(block, g()), high = Codes<L>(block + 32, g());
        std::byte* codes = to + g() * kCodesBytes<L> / 8;
        if constexpr (kSigned<L>) {
          const Widened first(low), second(high);
          Store256(codes, first.even);
          Store256(codes + 32, second.even);
          Store256(codes + 64, first.odd);
          Store256(codes + 96, second.odd);
        } else {
          Store256(codes, low);
          Store256(codes + 32, high);
        }
      });
    }
  }
}

// The same for n activations, a multiple of 32: of each four the even ones, then the odd ones.
void Widen(const int8_t* q, size_t n, int16_t* to) {
  const __m128i order = _mm_set_epi8(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
  for (size_t i = 0; i < n; i += 16) {
    const __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + i)), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_cvtepi8_epi16(bytes));
  }
}

// The rows of x that many rows are taken in: twice four sums leave registers enough for codes and activations.
constexpr size_t kRows = 4;
// Of these rows, of both halves of a panel. Each by its name: gcc keeps arrays that live through a loop in memory.
struct Sums {
  __m256i low0, low1, low2, low3, high0, high1, high2, high3;

  template <typename Fn>
  [[gnu::always_inline]] void Rows(const Fn& f) {
    f(low0, high0, std::integral_constant<size_t, 0>());
    f(low1, high1, std::integral_constant<size_t, 1>());
    f(low2, high2, std::integral_constant<size_t, 2>());
    f(low3, high3, std::integral_constant<size_t, 3>());
  }
  // In registers, here: keeps the compiler from computing products far ahead, for whose sums no register is left.
  [[gnu::always_inline]] void Pin() { asm("" : "+x"(low0), "+x"(low1), "+x"(low2), "+x"(low3), "+x"(high0), "+x"(high1), "+x"(high2), "+x"(high3)); }
};

// dots += what groups [begin, end) of a block give, unpacked.
template <typename L, size_t begin, size_t end>
[[gnu::always_inline]] inline void AddGroups(const int16_t* q, const std::byte* codes, Sums& dots) {
#pragma GCC unroll kUnrolled
  for (size_t two = 2 * begin; two < 2 * end; ++two) {
    const __m256i low = Load256(codes + 64 * two), high = Load256(codes + 64 * two + 32);
    dots.Rows([&](__m256i& a, __m256i& b, auto r) {
      int32_t pair;
      __builtin_memcpy(&pair, q + r() * kBlock + 2 * two, 4);
      const __m256i pairs = _mm256_set1_epi32(pair);
      a = _mm256_add_epi32(a, _mm256_madd_epi16(low, pairs));
      b = _mm256_add_epi32(b, _mm256_madd_epi16(high, pairs));
    });
    dots.Pin();
  }
}
template <typename L, size_t begin, size_t end>
[[gnu::always_inline]] inline void AddGroups(const int8_t* q, const std::byte* codes, Sums& dots) {
  constexpr size_t kRun = kSafe<L> < end - begin ? kSafe<L> : end - begin;
  const __m256i ones = _mm256_set1_epi16(1);
  for (size_t run = begin; run < end; run += kRun) {
    Sums words;
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
    add(dots.high0, words.high0), add(dots.high1, words.high1), add(dots.high2, words.high2), add(dots.high3, words.high3);
  }
}

// The rows of one group, the first of which is `row`, against units [begin, end) of one panel, whose codes are unpacked, on top of what `out` holds. q: of the
// first row and unit.
template <typename L, typename Q>
void AddUnits(const Quantized& x, size_t row, const Q* q, const std::byte* panel, const std::byte* codes, size_t begin, size_t end, size_t columns,
              float* out, size_t ldo) {
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  const size_t n[2] = {Columns(0, columns), Columns(8, columns)};
  __m256 sum[2][kRows];
  for (size_t h = 0; h < 2; ++h) LoadSums(out + 8 * h, ldo, n[h], begin == 0, sum[h]);
  size_t at = x.At(row, begin * L::kBlocks);
  for (size_t u = begin; u < end; ++u) {
    const std::byte* unit = panel + u * L::kUnitBytes;
    for (size_t b = 0; b < L::kBlocks; ++b, at += kRows, q += kRows * kBlock, codes += kCodesBytes<L>) {
      Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
        Sums dots;
        dots.Rows([&](__m256i& low, __m256i& high, auto r) { low = high = Offset<L>(x, at + r(), s()); });
        AddGroups<L, s() * kGroups, (s() + 1) * kGroups>(q, codes, dots);
        AddPart<L>(x, at, unit, 0, b, s(), {dots.low0, dots.low1, dots.low2, dots.low3}, sum[0]);
        AddPart<L>(x, at, unit, 8, b, s(), {dots.high0, dots.high1, dots.high2, dots.high3}, sum[1]);
      });
      AddMins<L>(x, at, unit, 0, b, sum[0]);
      AddMins<L>(x, at, unit, 8, b, sum[1]);
    }
  }
  for (size_t h = 0; h < 2; ++h) StoreSums(sum[h], n[h], out + 8 * h, ldo);
}

// REQUIRES: rows a multiple of kRows, x.group == kRows.
template <typename L>
void ManyRows(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  const size_t units = x.blocks / L::kBlocks, segment = kCodesSegment / L::kUnit, stride = units * L::kUnitBytes;
  constexpr size_t kPanelCodes = kCodesSegment / kBlock * kCodesBytes<L>;
  alignas(64) std::byte codes[kSlice * kPanelCodes];
  alignas(64) int16_t wide[kSigned<L> ? kRows * kCodesSegment : 1];
  for (size_t slice = 0; slice < panels; slice += kSlice) {
    const size_t count = panels - slice < kSlice ? panels - slice : kSlice;
    for (size_t begin = 0; begin < units; begin += segment) {
      const size_t end = begin + segment < units ? begin + segment : units;
      for (size_t p = 0; p < count; ++p) {
        const std::byte* panel = w + (slice + p) * stride;
        Unpack<L>(panel, begin, end, end < units ? panel + end * L::kUnitBytes : panel + kSlice * stride, codes + p * kPanelCodes);
      }
      for (size_t row = 0; row < rows; row += kRows) {
        const int8_t* narrow = x.q + x.At(row, begin * L::kBlocks) * kBlock;
        if constexpr (kSigned<L>) Widen(narrow, (end - begin) * L::kBlocks * kRows * kBlock, wide);
        for (size_t p = 0; p < count; ++p) {
          const size_t column = (slice + p) * kPanel;
          auto add = [&](const auto* q) {
            AddUnits<L>(x, row, q, w + (slice + p) * stride, codes + p * kPanelCodes, begin, end, columns < column ? 0 : columns - column,
                        out + row * ldo + column, ldo);
          };
          if constexpr (kSigned<L>) add(wide);
          else add(narrow);
        }
      }
    }
  }
}

template <typename L>
void FewRows(const Quantized& x, size_t begin, size_t end, const std::byte* w, size_t stride, size_t panels, size_t columns, float* out, size_t ldo) {
  for (size_t row = begin; row < end;) {
    const size_t rest = x.group - row % x.group, one = end - row < rest ? end - row : rest;  // of one group
    const size_t rows = !kEveryShape ? 1 : one > 3 ? 2 : one;
    auto stream = StreamTile<L, 1>;
    if constexpr (kEveryShape) stream = rows == 1 ? StreamTile<L, 1> : rows == 2 ? StreamTile<L, 2> : StreamTile<L, 3>;
    stream(x, row, w, stride, panels, columns, out + row * ldo, ldo);
    row += rows;
  }
}

// From how many rows on unpacking pays.
constexpr size_t kMany = 8;

template <PanelType type>
void DotTyped(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  using L = PanelLayout<type>;
  const size_t many = rows < kMany ? 0 : rows / kRows * kRows, stride = x.blocks / L::kBlocks * L::kUnitBytes;
  assert(many == 0 || x.group == kRows);
  if (many > 0) ManyRows<L>(x, many, w, panels, columns, out, ldo);
  if (many == rows) return;
  for (size_t p = 0; p < panels; p += kSlice) {
    const size_t column = p * kPanel;
    FewRows<L>(x, many, rows, w + p * stride, stride, panels - p < kSlice ? panels - p : kSlice, columns < column ? 0 : columns - column, out + column, ldo);
  }
}

void DotPanels(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  WithPanelType(type, [&]<PanelType t>() { DotTyped<t>(x, rows, w, panels, columns, out, ldo); });
}

}  // namespace

const IsaOps* Avx2Ops() {
  static constexpr IsaOps kOps = {Dot<V8>,      DotPanels,   QuantizeRow<Quantize>, Scores<V8>,
                                 ScaleMax<V8>, ExpSum<V8>, WeightedSum<V8>, SiluTimes<V8>, kRows};
  return &kOps;
}

}  // namespace gyre::cpu
