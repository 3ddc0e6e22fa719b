// TileOps in terms of a class Tiles (Configure, Release, Zero<t>, Load<t>, Store<t>, DotBf16<c, a, b>, Joined, Floats).
// All of it uses AVX-512.
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/cpu/products/avx512_panels-inl.h"
#include "kernels/cpu/isa/avx512_vector-inl.h"
#include "kernels/cpu/isa/exponential-inl.h"
#include "kernels/cpu/products/tiles.h"

namespace gyre::cpu {
namespace {

// A float whose mantissa takes a code as its byte `at`: the result is Value() + code exactly, without a conversion.
template <size_t bits>
struct Mantissa {
  static constexpr size_t at = bits == 8 ? 1 : 2;
  static constexpr int base = bits == 8 ? 0x47000000 : 0x43000000;
  static float Value() { return bits == 8 ? 32768.0f : 128.0f; }
};

// Repeats each of 8 columns, the first or the second 8: each lane pair of a tile's row belongs to one column before it
// is rounded.
template <size_t half>
__m512 Twice(__m512 columns) {
  return _mm512_permutexvar_ps(
      _mm512_add_epi32(_mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0), _mm512_set1_epi32(8 * half)),
      columns);
}

// Prefetch distance in bytes for codes that are expanded.
constexpr size_t kAhead = 2048;

template <typename Tiles, PanelType type>
void ExpandTyped(const std::byte* panel, size_t begin, size_t end, std::byte* tiles) {
  using L = PanelLayout<type>;
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts, kBits = L::kTable ? 8 : L::kBits;
  const __m512 zero = _mm512_set1_ps(Mantissa<kBits>::Value() + static_cast<float>(L::kZero));
  for (size_t at = begin; at < end; ++at, tiles += kTileBytes) {
    const std::byte* unit = panel + at / L::kBlocks * L::kUnitBytes;
    const size_t b = at % L::kBlocks;
    const std::byte* block = unit + L::kHeader + b * L::kBlockBytes;
    for (size_t line = 0; line < L::kBlockBytes; line += 64) __builtin_prefetch(block + line + kAhead);
    const BlockCodes<L> all(unit, b);
    Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
      const __m512 scale = Scales<L>(unit, b, s());
      __m512 base = _mm512_setzero_ps();
      if constexpr (L::kMin) base = Mins<L>(unit, b);
      if constexpr (L::kHalfMin) base = HalfMins<L>(unit, b, s());
      base = _mm512_fnmadd_ps(zero, scale, base);
      const __m512 scale0 = Twice<0>(scale), scale1 = Twice<1>(scale), base0 = Twice<0>(base), base1 = Twice<1>(base);
      Each<s() * kGroups>(std::make_index_sequence<kGroups>(), [&](auto g) {
        const __m512i codes = all.template Group<g()>();
        Each<0>(std::make_index_sequence<2>(), [&](auto pair) {
          const __m512 first = _mm512_fmadd_ps(Tiles::template Floats<kBits, pair(), 0>(codes), scale0, base0);
          const __m512 second = _mm512_fmadd_ps(Tiles::template Floats<kBits, pair(), 1>(codes), scale1, base1);
          _mm512_store_si512(tiles + 128 * g() + 64 * pair(), Tiles::Joined(first, second));
        });
      });
    });
  }
}

template <typename Tiles>
void ExpandPanel(PanelType type, const std::byte* panel, size_t begin, size_t end, std::byte* tiles) {
  WithPanelType(type, [&]<PanelType t>() { ExpandTyped<Tiles, t>(panel, begin, end, tiles); });
}

// Loads 16 codes of 4 bits, which lie `shift` bits up in successive bytes.
inline __m512 Load16Nibbles(const std::byte* from, int shift) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m512i codes = _mm512_and_si512(_mm512_srl_epi32(bytes, _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(15));
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_set1_epi32(8)));
}

// Loads 16 elements from `at` on, as far as `mask` says that they exist; those of types with scales are not yet scaled.
template <KvType type>
__m512 Load16(const std::byte* values, size_t at, __mmask16 mask) {
  const std::byte* from = values + KvCodeBytes(type, at);
  if constexpr (type == KvType::kF32) return _mm512_maskz_loadu_ps(mask, from);
  if constexpr (type == KvType::kF16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
  if constexpr (type == KvType::kBf16)
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, from)));
}

// Rounds 32 elements from `at` on, of which n exist, to bf16, or returns the residuals. `seen` collects the bits of all
// elements, to find out whether rounding left anything.
template <typename Tiles, FloatType type, bool residual = false>
__m512i Rounded(const void* w, size_t at, size_t n, __m512i* seen = nullptr) {
  const auto whole = static_cast<__mmask32>(n >= 32 ? ~0u : (1u << n) - 1);
  if constexpr (type == FloatType::kBf16) {
    return _mm512_maskz_loadu_epi16(whole, static_cast<const uint16_t*>(w) + at);
  } else {
    auto half = [&](size_t i) {
      constexpr KvType as = type == FloatType::kF32 ? KvType::kF32 : KvType::kF16;
      return Load16<as>(static_cast<const std::byte*>(w), at + i, static_cast<__mmask16>(whole >> i));
    };
    const __m512 first = half(0), second = half(16);
    if (seen != nullptr)
      *seen =
          _mm512_ternarylogic_epi32(*seen, _mm512_castps_si512(first), _mm512_castps_si512(second), 0xFE);  // a | b | c
    const __m512i rounded = Tiles::Joined(first, second);
    if constexpr (!residual) return rounded;
    auto rest = [](__m512 v, __m256i near) {
      return _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(near), 16)));
    };
    return Tiles::Joined(rest(first, _mm512_castsi512_si256(rounded)),
                         rest(second, _mm512_extracti64x4_epi64(rounded, 1)));
  }
}

template <typename Tiles>
void RoundRows(const float* x, size_t ldx, size_t rows, size_t k, std::byte* tiles) {
  for (size_t at = 0; at < k; at += kTileDepth, tiles += kTileBytes) {
    for (size_t r = 0; r < kTileRows; ++r) {
      const __m512i row = r < rows ? Rounded<Tiles, FloatType::kF32>(x + r * ldx, at, k - at) : _mm512_setzero_si512();
      _mm512_store_si512(tiles + 64 * r, row);
    }
  }
}

// Transposes: r[i][j] becomes r[j][i].
inline void Transpose16(__m512i (&r)[16]) {
  __m512i t[16];
  for (size_t i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (size_t i = 0; i < 16; i += 4) {  // then lane l of r[i + c] has column 4 l + c of rows i to i + 3
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (size_t c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);  // lanes 0 and 2: columns c and 8 + c of rows 0 to 7
    t[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
    t[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
  }
  for (size_t c = 0; c < 4; ++c) {
    r[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xDD);
    r[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
    r[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xDD);
  }
}

template <typename Tiles, FloatType type, bool residual>
bool ExpandRows(const void* w, size_t columns, size_t k, size_t begin, size_t end, std::byte* tiles) {
  __m512i seen = _mm512_setzero_si512();
  for (size_t at = begin * kTileDepth; at < end * kTileDepth; at += kTileDepth, tiles += kTileBytes) {
    __m512i rows[16];
    for (size_t c = 0; c < 16; ++c)
      rows[c] = c < columns ? Rounded<Tiles, type, residual>(w, c * k + at, k - at, &seen) : _mm512_setzero_si512();
    Transpose16(rows);
    for (size_t i = 0; i < 16; ++i) _mm512_store_si512(tiles + 64 * i, rows[i]);
  }
  return !residual && _mm512_test_epi32_mask(seen, _mm512_set1_epi32(0xFFFF)) != 0;
}

template <typename Tiles>
bool ExpandFloats(const void* w, FloatType type, bool residual, size_t columns, size_t k, size_t begin, size_t end,
                  std::byte* tiles) {
  constexpr FloatType kF32 = FloatType::kF32, kF16 = FloatType::kF16, kBf16 = FloatType::kBf16;
  const auto expand = type == kBf16  ? ExpandRows<Tiles, kBf16, false>
                      : type == kF16 ? (residual ? ExpandRows<Tiles, kF16, true> : ExpandRows<Tiles, kF16, false>)
                                     : (residual ? ExpandRows<Tiles, kF32, true> : ExpandRows<Tiles, kF32, false>);
  return expand(w, columns, k, begin, end, tiles);
}

// Writes rows of tiles: row i has row(2i) and row(2i + 1) as bf16, and `residual` gets what that leaves over. f16 is
// exact either way, so it is truncated; other types are rounded, to keep 16 bits.
template <KvType type, bool with_residual, typename Fn>
void PutPairs(size_t count, const Fn& row, std::byte* rows, std::byte* residual) {
  constexpr bool kExact = type == KvType::kF16 || type == KvType::kBf16;
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
  auto near = [](__m512 v) {  // rounds to the upper half
    const __m512i bits = _mm512_castps_si512(v);
    if constexpr (kExact) return bits;
    return _mm512_mask_add_epi32(bits, _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), bits, _mm512_set1_epi32(0x8000));
  };
  auto put = [&](__m512i low, __m512i high, std::byte* to) {
    _mm512_store_si512(to, _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high, upper, 0xF8));  // a | (b & c)
  };
  for (size_t i = 0; i < count; ++i, rows += 64) {
    const __m512 low = row(2 * i), high = row(2 * i + 1);
    put(near(low), near(high), rows);
    if constexpr (with_residual) {
      auto rest = [&](__m512 v) {
        return near(_mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_and_si512(near(v), upper))));
      };
      put(rest(low), rest(high), residual);
      residual += 64;
    }
  }
}

template <KvType type, bool with_residual>
void ExpandKeysTyped(const KvSpan& keys, size_t stride, size_t head_dim, std::byte* tiles, std::byte* residual) {
  auto row = [&](size_t d) {
    if (d >= head_dim) return _mm512_setzero_ps();
    __m512 key;
    if constexpr (type == KvType::kQ4_0Plain)
      key = Load16Nibbles(keys.values + KvNibbleByte(d) * stride, KvNibbleShift(d));
    else
      key = Load16<type>(keys.values, d * stride, 0xFFFF);
    if constexpr (!KvHasScales(type)) return key;
    return _mm512_mul_ps(key, Load16<KvType::kF16>(keys.scales, d / kKvBlock * stride, 0xFFFF));
  };
  PutPairs<type, with_residual>(TileDepth(head_dim) * kTileRows, row, tiles, residual);
}

// Replaces infinity and NaN by the largest bf16: a query that does not attend to the position has the weight 0, and 0 *
// infinity is NaN.
inline __m512 Finite(__m512 v) {
  const __m512 largest = _mm512_set1_ps(0x1.FEp127f);
  return _mm512_max_ps(_mm512_min_ps(v, largest), _mm512_sub_ps(_mm512_setzero_ps(), largest));
}

template <KvType type, bool with_residual>
void ExpandValuesTyped(const KvSpan& values, size_t skip, size_t n, size_t head_dim, size_t column, std::byte* rows,
                       std::byte* residual) {
  const size_t columns = head_dim - column;
  const auto mask = static_cast<__mmask16>(columns >= kTileRows ? 0xFFFF : (1u << columns) - 1);
  auto row = [&](size_t position) {
    if (position < skip || position >= skip + n) return _mm512_setzero_ps();
    const size_t at = (position - skip) * head_dim + column;
    __m512 value;
    if constexpr (type == KvType::kQ4_0Plain)
      value = Load16Nibbles(values.values + KvNibbleByte(at), KvNibbleShift(at));
    else
      value = Load16<type>(values.values, at, mask);
    if constexpr (!KvHasScales(type)) return Finite(value);
    uint16_t scale;
    __builtin_memcpy(&scale, values.scales + ((position - skip) * head_dim + column) / kKvBlock * 2, 2);
    return Finite(_mm512_mul_ps(value, _mm512_set1_ps(_cvtsh_ss(scale))));
  };
  PutPairs<type, with_residual>(kTileRows / 2, row, rows, residual);
}

inline void ExpandKeys(const KvSpan& keys, size_t stride, size_t head_dim, std::byte* tiles, std::byte* residual) {
  WithUnrotatedKvType(keys.type, [&]<KvType type>() {
    if (residual != nullptr)
      ExpandKeysTyped<type, true>(keys, stride, head_dim, tiles, residual);
    else
      ExpandKeysTyped<type, false>(keys, stride, head_dim, tiles, residual);
  });
}

inline void ExpandValues(const KvSpan& values, size_t skip, size_t n, size_t head_dim, size_t column, std::byte* rows,
                         std::byte* residual) {
  WithUnrotatedKvType(values.type, [&]<KvType type>() {
    if (residual != nullptr)
      ExpandValuesTyped<type, true>(values, skip, n, head_dim, column, rows, residual);
    else
      ExpandValuesTyped<type, false>(values, skip, n, head_dim, column, rows, residual);
  });
}

template <typename Tiles>
float ExpScoresRow(const float* scores, Range whole, Range seen, float scale, float* max, std::byte* row) {
  constexpr float kLog2E = 1.44269504f;
  const __m512 by = _mm512_set1_ps(scale * kLog2E);
  // Calls f(position, mask of the 16 positions, mask of the next 16).
  auto each = [&](auto f) {
    auto upTo = [](size_t position, size_t at) {
      return position <= at ? 0 : position >= at + 16 ? 0xFFFFu : (1u << (position - at)) - 1;
    };
    auto of = [&](size_t at) { return static_cast<__mmask16>(upTo(seen.to, at) & ~upTo(seen.from, at)); };
    for (size_t at = whole.from; at < whole.to; at += kTileDepth) {
      const bool all = seen.from <= at && at + kTileDepth <= seen.to;
      f(at, all ? 0xFFFF : of(at), all ? 0xFFFF : of(at + 16));
    }
  };
  auto load = [&](size_t at, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, scores + at); };
  __m512 tops[2] = {_mm512_set1_ps(-__builtin_inff()), _mm512_set1_ps(-__builtin_inff())};
  each([&](size_t at, __mmask16 first, __mmask16 second) {
    tops[0] = _mm512_mask_max_ps(tops[0], first, _mm512_mul_ps(load(at, first), by), tops[0]);
    tops[1] = _mm512_mask_max_ps(tops[1], second, _mm512_mul_ps(load(at + 16, second), by), tops[1]);
  });
  const float top = _mm512_reduce_max_ps(_mm512_max_ps(tops[0], tops[1]));
  const __m512 most = _mm512_set1_ps(top), least = _mm512_set1_ps(-126.0f);
  __m512 sum = _mm512_setzero_ps();
  each([&](size_t at, __mmask16 first, __mmask16 second) {
    auto weights = [&](__m512 s, __mmask16 mask) {
      return _mm512_maskz_mov_ps(mask, PowerOf2<V16>(_mm512_max_ps(_mm512_sub_ps(_mm512_mul_ps(s, by), most), least)));
    };
    const __m512 low = weights(load(at, first), first), high = weights(load(at + 16, second), second);
    sum = _mm512_add_ps(sum, _mm512_add_ps(low, high));
    _mm512_store_si512(row, Tiles::Joined(low, high));
    row += kTileBytes;
  });
  *max = top / kLog2E;
  return _mm512_reduce_add_ps(sum);
}

// The place of a tile of sums in the output, which may end within the tile.
struct OutputTile {
  float* out;
  size_t ldo, rows, columns;
  bool whole() const { return rows >= kTileRows && columns >= kTileRows; }
  __mmask16 mask() const { return static_cast<__mmask16>(columns >= kTileRows ? 0xFFFF : (1u << columns) - 1); }
};

template <typename Tiles, int t>
void LoadSums(const OutputTile& c, bool first) {
  if (first) return Tiles::template Zero<t>();
  if (c.whole()) return Tiles::template Load<t>(c.out, c.ldo * sizeof(float));
  alignas(64) float part[kTileRows * kTileRows] = {};
  for (size_t r = 0; r < kTileRows && r < c.rows; ++r)
    _mm512_store_ps(part + r * kTileRows, _mm512_maskz_loadu_ps(c.mask(), c.out + r * c.ldo));
  Tiles::template Load<t>(part, 64);
}

template <typename Tiles, int t>
void StoreSums(const OutputTile& c) {
  if (c.whole()) return Tiles::template Store<t>(c.out, c.ldo * sizeof(float));
  alignas(64) float part[kTileRows * kTileRows];
  Tiles::template Store<t>(part, 64);
  for (size_t r = 0; r < kTileRows && r < c.rows; ++r)
    _mm512_mask_storeu_ps(c.out + r * c.ldo, c.mask(), _mm512_load_ps(part + r * kTileRows));
}

// One tile of k onto R x C tiles of sums, numbers 0 to 3. If the other hardware thread of a core is busy, each has half
// of the physical tile registers. If all eight named ones held values, no physical one would be free to load into
// before the products finish. Therefore a and b share three numbers, and tiles that are no longer needed are zeroed, as
// zeros need no physical register (bench/experiments.md).
template <typename Tiles, size_t R, size_t C>
[[gnu::always_inline]] inline void MultiplyStep(const std::byte* a, size_t a_stride, const std::byte* b,
                                                size_t b_stride) {
  Tiles::template Load<6>(b, 64);
  Tiles::template Load<4>(a, 64);
  Tiles::template DotBf16<0, 4, 6>();
  if constexpr (R == 2 && C == 2) {
    Tiles::template Load<5>(a + a_stride, 64);
    Tiles::template DotBf16<2, 5, 6>();
    Tiles::template Zero<6>();
    Tiles::template Load<6>(b + b_stride, 64);
    Tiles::template DotBf16<1, 4, 6>();
    Tiles::template Zero<4>();
    Tiles::template DotBf16<3, 5, 6>();
    Tiles::template Zero<5>();
    Tiles::template Zero<6>();
  } else {
    if constexpr (R == 2) Tiles::template Load<4>(a + a_stride, 64);
    if constexpr (C == 2) Tiles::template Load<6>(b + b_stride, 64);
    if constexpr (R == 2 || C == 2) Tiles::template DotBf16<1, 4, 6>();
  }
}

template <typename Tiles, size_t R, size_t C>
void MultiplyTiles(const std::byte* a, size_t a_stride, const TileColumns& b, size_t depth, bool first,
                   const OutputTile& all) {
  constexpr auto kSums = std::make_index_sequence<R * C>();
  auto corner = [&](size_t sum) {
    const size_t row = sum / C * kTileRows, column = sum % C * kTileRows;
    return OutputTile{all.out + row * all.ldo + column, all.ldo, all.rows - row, all.columns - column};
  };
  Each<0>(kSums, [&](auto sum) { LoadSums<Tiles, sum()>(corner(sum()), first); });
  auto add = [&](const std::byte* tiles) {
    for (size_t at = 0; at < depth * kTileBytes; at += kTileBytes)
      MultiplyStep<Tiles, R, C>(a + at, a_stride, tiles + at, b.stride);
  };
  add(b.tiles);
  if (b.residual > 0) add(b.tiles + b.residual);
  Each<0>(kSums, [&](auto sum) { StoreSums<Tiles, sum()>(corner(sum())); });
}

template <typename Tiles>
void Multiply(const std::byte* a, size_t a_stride, size_t rows, const TileColumns& b, size_t columns, size_t depth,
              bool first, float* out, size_t ldo) {
  const OutputTile all{out, ldo, rows, columns};
  const bool tall = rows > kTileRows, wide = columns > kTileRows;
  for (size_t r = 0; tall && wide && depth > 8 && r < 2 * kTileRows && r < rows;
       ++r) {  // where sums go: they come while products are made
    __builtin_prefetch(out + r * ldo, 1);
    __builtin_prefetch(out + r * ldo + kTileRows, 1);
  }
  const auto multiply = tall ? (wide ? MultiplyTiles<Tiles, 2, 2> : MultiplyTiles<Tiles, 2, 1>)
                             : (wide ? MultiplyTiles<Tiles, 1, 2> : MultiplyTiles<Tiles, 1, 1>);
  multiply(a, a_stride, b, depth, first, all);
}

template <typename Tiles>
constexpr TileOps kTileOps = {RoundRows<Tiles>, ExpandPanel<Tiles>,  ExpandFloats<Tiles>, ExpandKeys,
                              ExpandValues,     ExpScoresRow<Tiles>, Multiply<Tiles>,     [] { Tiles::Configure({}); },
                              Tiles::Release};

}  // namespace
}  // namespace gyre::cpu
