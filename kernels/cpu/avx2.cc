// AVX2, FMA, F16C.
#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/isa_ops.h"

namespace gyre::cpu {
namespace {

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

__m256i Load256(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
__m128i Load128(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
__m128i Load64(const std::byte* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }

template <typename L>
inline constexpr bool kSigned = L::kBits == 8 || L::kTable;

// Group g of a block for half a panel, eight columns: unsigned codes, or signed numbers where kSigned.
template <typename L>
__m256i Codes(const std::byte* block, size_t g) {
  if constexpr (L::kBits == 8) {
    return _mm256_xor_si256(Load256(block + g * kGroup), _mm256_set1_epi8(-128));
  } else if constexpr (L::kBits <= 3) {
    const __m256i pairs = Load256(block + g / 4 * kGroup);
    const __m256i two = _mm256_and_si256(_mm256_srli_epi16(pairs, static_cast<int>(2 * (g % 4))), _mm256_set1_epi8(3));
    if constexpr (L::kBits == 2) return two;
    const __m256i bits = Load256(block + L::kPlanes);
    const __m256i there = g < 2 ? _mm256_slli_epi16(bits, static_cast<int>(2 - g)) : _mm256_srli_epi16(bits, static_cast<int>(g - 2));
    return _mm256_or_si256(two, _mm256_and_si256(there, _mm256_set1_epi8(4)));
  } else {
    const __m256i two = Load256(block + g % 4 * kGroup);
    const __m256i low = _mm256_and_si256(g < 4 ? two : _mm256_srli_epi16(two, 4), _mm256_set1_epi8(15));
    if constexpr (L::kTable) {
      const __m128i table = Load128(reinterpret_cast<const std::byte*>(L::kIq4 ? kIq4Values : kFp4Doubled));
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), low);
    }
    if constexpr (L::kBits == 4) return low;
    if constexpr (L::kBits == 5) {
      const __m256i bits = Load256(block + L::kPlanes);
      const __m256i there = g < 4 ? _mm256_slli_epi16(bits, static_cast<int>(4 - g % 4)) : _mm256_srli_epi16(bits, static_cast<int>(g % 4));
      return _mm256_or_si256(low, _mm256_and_si256(there, _mm256_set1_epi8(16)));
    }
    const __m256i bits = Load256(block + L::kPlanes + g / 4 * kGroup);
    const __m256i there = g % 4 == 3 ? _mm256_srli_epi16(bits, 2) : _mm256_slli_epi16(bits, static_cast<int>(4 - 2 * (g % 4)));
    return _mm256_or_si256(low, _mm256_and_si256(there, _mm256_set1_epi8(48)));
  }
}

// Eight columns' scales of part s of block b, and their minima; `first` is the first column.
template <typename L>
__m256 Scales(const std::byte* unit, size_t first, size_t b, size_t s) {
  if constexpr (L::kWide) return _mm256_loadu_ps(reinterpret_cast<const float*>(unit + ((b * L::kScalesPerBlock + s) * kPanel + first) * 4));
  if constexpr (!L::kSuper) return _mm256_cvtph_ps(Load128(unit + (b * kPanel + first) * 2));
  __m256i bytes = _mm256_cvtepi8_epi32(Load64(unit + L::kMins + (b * L::kScalesPerBlock + s) * kPanel + first));
  if constexpr (L::kHalfMin) bytes = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
  return _mm256_mul_ps(_mm256_cvtph_ps(Load128(unit + first * 2)), _mm256_cvtepi32_ps(bytes));
}
template <typename L>
__m256 HalfMins(const std::byte* unit, size_t first, size_t b, size_t s) {
  const __m256i bytes = _mm256_cvtepu8_epi32(Load64(unit + L::kMins + (b * 2 + s) * kPanel + first));
  return _mm256_mul_ps(_mm256_cvtph_ps(Load128(unit + (kPanel + first) * 2)), _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4)));
}
template <typename L>
__m256 Mins(const std::byte* unit, size_t first, size_t b) {
  if constexpr (!L::kSuper) return _mm256_cvtph_ps(Load128(unit + L::kMins + (b * kPanel + first) * 2));
  const __m256i bytes = _mm256_cvtepu8_epi32(Load64(unit + L::kByteMins + b * kPanel + first));
  return _mm256_mul_ps(_mm256_cvtph_ps(Load128(unit + (kPanel + first) * 2)), _mm256_cvtepi32_ps(bytes));
}

// R rows of one group against half a panel, units [begin, end), on top of what sum holds.
template <typename L, size_t R>
[[gnu::always_inline]] inline void Tile(const Quantized& x, size_t row, const std::byte* w, size_t first, size_t begin, size_t end,
                                        __m256 (&sum)[R]) {
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  // How many products of a code and an activation, twice, a 16-bit sum holds.
  constexpr size_t kSafe = kSigned<L> ? 1 : L::kBits == 6 ? 2 : L::kBits == 5 ? 4 : 8;
  const __m256i ones = _mm256_set1_epi16(1);
  const size_t at = x.At(row, begin * L::kBlocks), group = x.group;
  const int8_t* q = x.q + at * kBlock;
  const float* scale = x.scale + at;
  const float* total = x.sum + at;
  const int32_t* offset = x.offset + at;
  for (size_t u = begin; u < end; ++u) {
    const std::byte* unit = w + u * L::kUnitBytes;
    for (size_t b = 0; b < L::kBlocks; ++b, q += group * kBlock, scale += group, total += group, offset += group) {
      const std::byte* block = unit + L::kHeader + b * L::kBlockBytes + first * 4;
      Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
        __m256i dots[R], words[R];
        for (size_t r = 0; r < R; ++r)
          dots[r] = kSigned<L> || L::kHalfMin ? _mm256_setzero_si256() : _mm256_set1_epi32(offset[s() * x.parts + r]);
        Each<s() * kGroups>(std::make_index_sequence<kGroups>(), [&](auto g) {
          const __m256i codes = Codes<L>(block, g());
          const __m256i magnitude = kSigned<L> ? _mm256_abs_epi8(codes) : codes;
          for (size_t r = 0; r < R; ++r) {
            int32_t four;
            __builtin_memcpy(&four, q + r * kBlock + 4 * g(), 4);
            const __m256i fours = _mm256_set1_epi32(four);
            const __m256i product = _mm256_maddubs_epi16(magnitude, kSigned<L> ? _mm256_sign_epi8(fours, codes) : fours);
            words[r] = g() % kSafe == 0 || g() == s() * kGroups ? product : _mm256_add_epi16(words[r], product);
            if (g() % kSafe == kSafe - 1 || g() == (s() + 1) * kGroups - 1)
              dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(words[r], ones));
          }
        });
        const __m256 scales = Scales<L>(unit, first, b, s());
        for (size_t r = 0; r < R; ++r) {
          sum[r] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dots[r]), scales), _mm256_set1_ps(scale[r]), sum[r]);
        }
        if constexpr (L::kHalfMin) {
          const __m256 mins = HalfMins<L>(unit, first, b, s());
          for (size_t r = 0; r < R; ++r) {
            const float half = scale[r] * static_cast<float>(offset[s() * x.parts + r]);
            sum[r] = _mm256_fmadd_ps(mins, _mm256_set1_ps(half), sum[r]);
          }
        }
      });
      if constexpr (L::kMin) {
        const __m256 mins = Mins<L>(unit, first, b);
        for (size_t r = 0; r < R; ++r) sum[r] = _mm256_fmadd_ps(mins, _mm256_set1_ps(total[r]), sum[r]);
      }
    }
  }
}

template <typename L, size_t R>
void StoreTile(const Quantized& x, size_t row, const std::byte* w, size_t column, size_t columns, size_t begin, size_t end, float* out,
               size_t ldo) {
  const size_t n = columns - column < 8 ? columns - column : 8;
  __m256 sum[R];
  for (size_t r = 0; r < R; ++r)
    sum[r] = begin == 0 ? V8::Zero() : n == 8 ? V8::Load(out + (row + r) * ldo + column) : V8::LoadTail(out + (row + r) * ldo + column, n);
  Tile<L, R>(x, row, w, column % kPanel, begin, end, sum);
  for (size_t r = 0; r < R; ++r) {
    float* to = out + (row + r) * ldo + column;
    if (n == 8) V8::Store(to, sum[r]);
    else V8::StoreTail(to, sum[r], n);
  }
}

template <PanelType type>
void DotTyped(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  using L = PanelLayout<type>;
  const size_t units = x.blocks / L::kBlocks, stride = units * L::kUnitBytes, segment = rows > 3 ? 512 / L::kUnit : units;
  for (size_t p = 0; p < panels; ++p, w += stride) {
    for (size_t at = 0; at < units; at += segment) {
      const size_t end = at + segment < units ? at + segment : units;
      for (size_t column = p * kPanel; column < columns && column < (p + 1) * kPanel; column += 8) {
        size_t r = 0;
        for (; r + 3 <= rows; r += 3) StoreTile<L, 3>(x, r, w, column, columns, at, end, out, ldo);
        for (; r + 2 <= rows; r += 2) StoreTile<L, 2>(x, r, w, column, columns, at, end, out, ldo);
        for (; r < rows; ++r) StoreTile<L, 1>(x, r, w, column, columns, at, end, out, ldo);
      }
    }
  }
}

void DotPanels(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  WithPanelType(type, [&]<PanelType t>() { DotTyped<t>(x, rows, w, panels, columns, out, ldo); });
}

}  // namespace

const IsaOps* Avx2Ops() {
  static constexpr IsaOps kOps = {Dot<V8>,      DotPanels,   QuantizeRow<Quantize>, Scores<V8>,
                                 ScaleMax<V8>, ExpSum<V8>, WeightedSum<V8>, SiluTimes<V8>};
  return &kOps;
}

}  // namespace gyre::cpu
