// Products of rows quantized to 8 bits with packed weights. Integer dots are exact; the blocks' products are added in
// rising order, one chain an element, with the same float operations on every instruction set: all give equal bits.
// Included after vec_math.h, with GYRE_VNNI defined where the CPU has it; unnamed namespace: see dequant_blocks.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/panel_format.h"

namespace gyre {
namespace {

constexpr size_t kVecBytes = 4 * kLanes;
constexpr int kVecsPerPanel = static_cast<int>(kPanelColumns / kLanes);
// How far ahead of its use a weight is asked for, in bytes of its panel.
constexpr size_t kPrefetch = 3 * 1088;

inline int32_t Load32(const std::byte* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

#if defined(GYRE_VNNI)
constexpr size_t kQuantizedBytes = 1;
// sum + the dot of 4 unsigned weights and 4 signed x, in each lane.
inline VecI Dot4(VecI sum, VecI w, const std::byte* x) {
  return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(Load32(x)));
}
inline void StoreQuantized(const int32_t* q, std::byte* out) {
  int8_t narrow[kQuantBlock];
  for (size_t i = 0; i < kQuantBlock; ++i) narrow[i] = static_cast<int8_t>(q[i]);
  std::memcpy(out, narrow, sizeof(narrow));
}
#else
constexpr size_t kQuantizedBytes = 2;
// Bytes are widened to 16 bits, even and odd ones apart, because unsigned times signed bytes would saturate; x has each
// 4 elements as 0 2 1 3.
inline VecI Dot4(VecI sum, VecI w, const std::byte* x) {
  const VecI even = AndI(w, SetI(0x00FF00FF)), odd = ShiftRight16<8>(w);
  return AddI(sum, AddI(MulAddPairs16(even, SetI(Load32(x))), MulAddPairs16(odd, SetI(Load32(x + 4)))));
}
inline void StoreQuantized(const int32_t* q, std::byte* out) {
  int16_t narrow[kQuantBlock];
  for (size_t i = 0; i < kQuantBlock; i += 4) {
    narrow[i] = static_cast<int16_t>(q[i]);
    narrow[i + 1] = static_cast<int16_t>(q[i + 2]);
    narrow[i + 2] = static_cast<int16_t>(q[i + 1]);
    narrow[i + 3] = static_cast<int16_t>(q[i + 3]);
  }
  std::memcpy(out, narrow, sizeof(narrow));
}
#endif
constexpr size_t kGroup = 4 * kQuantizedBytes;            // bytes of x that meet a group of weights
constexpr size_t kBlock = kQuantBlock * kQuantizedBytes;  // bytes of x in a block

void QuantizeRow(const float* x, size_t k, size_t blocks, std::byte* data, float* scale, int32_t* sum16) {
  for (size_t b = 0; b < blocks; ++b, data += kBlock) {
    int32_t q[kQuantBlock] = {};
    float amax = 0;
    bool nan = false;
    if (b * kQuantBlock < k) {
      const float* xb = x + b * kQuantBlock;
      Vec highest = Zero();
      for (size_t i = 0; i < kQuantBlock; i += kLanes) {
        highest = Max(Abs(Load(xb + i)), highest);
        nan |= AnyNan(Load(xb + i));
      }
      amax = MaxAcross(highest);
      // A block this small is zero; the inverse of its scale would not be finite.
      if (amax < 1e-30f) amax = 0;
      const Vec inverse = Set(amax > 0 ? 127.0f / amax : 0.0f);
      for (size_t i = 0; i < kQuantBlock; i += kLanes) StoreI(q + i, RoundToInt(Mul(Load(xb + i), inverse)));
    }
    // What is not a number, and infinity, whose product above is none, stay visible in the result.
    scale[b] = nan ? __builtin_nanf("") : amax / 127.0f;
    for (size_t half = 0; half < 2; ++half) {
      int32_t sum = 0;
      for (size_t i = 0; i < 16; ++i) sum += static_cast<int8_t>(q[half * 16 + i]);
      sum16[2 * b + half] = sum;
    }
    StoreQuantized(q, data);
  }
}

// kRows rows of x at one place along k.
template <int kRows>
struct XRows {
  const std::byte* data[kRows];
  const float* scale[kRows];
  const int32_t* sum16[kRows];
};
template <int kRows>
using Dots = VecI[kRows][kVecsPerPanel];
template <int kRows>
using Sums = Vec[kRows][kVecsPerPanel];

// dots += weights * x at byte `at` of the rows.
template <int kRows>
inline void AddDots(Dots<kRows>& dots, int v, VecI w, const XRows<kRows>& x, size_t at) {
  GYRE_UNROLL
  for (int r = 0; r < kRows; ++r) dots[r][v] = Dot4(dots[r][v], w, x.data[r] + at);
}
// dots = -zero * (sum of x over `parts` parts of 16, from `part`).
template <int kRows>
inline void StartDots(Dots<kRows>& dots, int zero, const XRows<kRows>& x, size_t part, size_t parts) {
  GYRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    int32_t sum = 0;
    for (size_t i = 0; i < parts; ++i) sum += x.sum16[r][part + i];
    GYRE_UNROLL
    for (int v = 0; v < kVecsPerPanel; ++v) dots[r][v] = SetI(-zero * sum);
  }
}
// sums += dots * weight scale * scale of x.
template <int kRows>
inline void Finish(Sums<kRows>& sums, const Dots<kRows>& dots, int v, Vec weight_scale, const XRows<kRows>& x,
                   size_t block) {
  GYRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    sums[r][v] = Fma(ToFloat(dots[r][v]), Mul(weight_scale, Set(x.scale[r][block])), sums[r][v]);
  }
}

inline const std::byte* At(const std::byte* p, size_t group, int v) {
  return p + group * 64 + static_cast<size_t>(v) * kVecBytes;
}
inline Vec HalfScales(const std::byte* p, int v) {
  return LoadHalf(p + 2 * kLanes * static_cast<size_t>(v));
}
inline VecI LowNibbles(VecI w) {
  return AndI(w, SetI(0x0F0F0F0F));
}
inline VecI HighNibbles(VecI w) {
  return AndI(ShiftRight16<4>(w), SetI(0x0F0F0F0F));
}

template <int kRows>
inline void Step(PanelQ8, const std::byte* s, const XRows<kRows>& x, Sums<kRows>& sums) {
  for (size_t b = 0; b < 2; ++b) {
    Dots<kRows> dots;
    StartDots<kRows>(dots, PanelQ8::kZero, x, 2 * b, 2);
    GYRE_UNROLL
    for (int v = 0; v < kVecsPerPanel; ++v) {
      GYRE_UNROLL
      for (size_t g = 0; g < 8; ++g) {
        AddDots<kRows>(dots, v, LoadI(At(s + PanelQ8::kWeights, b * 8 + g, v)), x, b * kBlock + g * kGroup);
      }
      Finish<kRows>(sums, dots, v, HalfScales(s + b * 32, v), x, b);
    }
  }
}

template <int kRows>
inline void Step(PanelQ4, const std::byte* s, const XRows<kRows>& x, Sums<kRows>& sums) {
  for (size_t b = 0; b < 2; ++b) {
    Dots<kRows> dots;
    StartDots<kRows>(dots, PanelQ4::kZero, x, 2 * b, 2);
    GYRE_UNROLL
    for (int v = 0; v < kVecsPerPanel; ++v) {
      GYRE_UNROLL
      for (size_t g = 0; g < 4; ++g) {
        const VecI w = LoadI(At(s + PanelQ4::kWeights, b * 4 + g, v));
        AddDots<kRows>(dots, v, LowNibbles(w), x, b * kBlock + g * kGroup);
        AddDots<kRows>(dots, v, HighNibbles(w), x, b * kBlock + (g + 4) * kGroup);
      }
      Finish<kRows>(sums, dots, v, HalfScales(s + b * 32, v), x, b);
    }
  }
}

template <int kRows>
inline void Step(PanelQ4K, const std::byte* s, const XRows<kRows>& x, Sums<kRows>& sums) {
  for (size_t pair = 0; pair < 4; ++pair) {
    GYRE_UNROLL
    for (int v = 0; v < kVecsPerPanel; ++v) {
      Dots<kRows> dots[2];
      StartDots<kRows>(dots[0], 0, x, 0, 0);
      StartDots<kRows>(dots[1], 0, x, 0, 0);
      GYRE_UNROLL
      for (size_t g = 0; g < 8; ++g) {
        const VecI w = LoadI(At(s + PanelQ4K::kWeights, pair * 8 + g, v));
        AddDots<kRows>(dots[0], v, LowNibbles(w), x, 2 * pair * kBlock + g * kGroup);
        AddDots<kRows>(dots[1], v, HighNibbles(w), x, (2 * pair + 1) * kBlock + g * kGroup);
      }
      const size_t column = static_cast<size_t>(v) * kLanes;
      for (size_t e = 0; e < 2; ++e) {
        const size_t b = 2 * pair + e;
        const Vec scale = Mul(HalfScales(s, v), ToFloat(LoadU8(s + PanelQ4K::kScales + b * 16 + column)));
        const Vec min = Mul(HalfScales(s + PanelQ4K::kMin, v), ToFloat(LoadU8(s + PanelQ4K::kMins + b * 16 + column)));
        Finish<kRows>(sums, dots[e], v, scale, x, b);
        GYRE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const auto sum = static_cast<float>(x.sum16[r][2 * b] + x.sum16[r][2 * b + 1]);
          sums[r][v] = Fma(min, Set(-x.scale[r][b] * sum), sums[r][v]);
        }
      }
    }
  }
}

template <int kRows>
inline void Step(PanelQ6K, const std::byte* s, const XRows<kRows>& x, Sums<kRows>& sums) {
  const VecI high_bits = SetI(0x30303030);
  for (size_t pair = 0; pair < 4; ++pair) {
    for (size_t q = 0; q < 2; ++q) {  // groups 4q to 4q + 3 of both blocks: one scale each
      Dots<kRows> dots[2];
      StartDots<kRows>(dots[0], PanelQ6K::kZero, x, 4 * pair + q, 1);
      StartDots<kRows>(dots[1], PanelQ6K::kZero, x, 4 * pair + 2 + q, 1);
      GYRE_UNROLL
      for (int v = 0; v < kVecsPerPanel; ++v) {
        GYRE_UNROLL
        for (size_t m = 0; m < 2; ++m) {
          const size_t g = 4 * q + 2 * m;
          const VecI high = LoadI(At(s + PanelQ6K::kHigh, pair * 4 + 2 * q + m, v));
          const VecI even = LoadI(At(s + PanelQ6K::kWeights, pair * 8 + g, v));
          const VecI odd = LoadI(At(s + PanelQ6K::kWeights, pair * 8 + g + 1, v));
          const size_t first = 2 * pair * kBlock + g * kGroup, second = first + kBlock;
          AddDots<kRows>(dots[0], v, OrI(LowNibbles(even), AndI(ShiftLeft16<4>(high), high_bits)), x, first);
          AddDots<kRows>(dots[0], v, OrI(LowNibbles(odd), AndI(ShiftLeft16<2>(high), high_bits)), x, first + kGroup);
          AddDots<kRows>(dots[1], v, OrI(HighNibbles(even), AndI(high, high_bits)), x, second);
          AddDots<kRows>(dots[1], v, OrI(HighNibbles(odd), AndI(ShiftRight16<2>(high), high_bits)), x, second + kGroup);
        }
        for (size_t e = 0; e < 2; ++e) {
          const size_t b = 2 * pair + e;
          const std::byte* scales = s + PanelQ6K::kScales + (2 * b + q) * 16 + static_cast<size_t>(v) * kLanes;
          Finish<kRows>(sums, dots[e], v, Mul(HalfScales(s, v), ToFloat(LoadS8(scales))), x, b);
        }
      }
    }
  }
}

// kRows rows times kPanels panels side by side, which is as many streams from memory. Columns past `cols` are not
// stored.
template <typename Format, int kRows, int kPanels>
void PanelTile(const QuantizedRows& x, size_t row, const std::byte* panels, size_t panel_bytes, float* out, size_t ldo,
               size_t cols) {
  XRows<kRows> at;
  for (size_t r = 0; r < kRows; ++r) {
    at.data[r] = x.data + (row + r) * x.row_bytes;
    at.scale[r] = x.scale + (row + r) * x.blocks;
    at.sum16[r] = x.sum16 + (row + r) * 2 * x.blocks;
  }
  Sums<kRows> sums[kPanels];
  for (auto& panel : sums) {
    for (auto& of_row : panel) {
      for (Vec& v : of_row) v = Zero();
    }
  }
  for (size_t b = 0; b < x.blocks; b += Format::kBlocks, panels += Format::kBytes) {
    GYRE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* s = panels + static_cast<size_t>(p) * panel_bytes;
      if (kRows == 1) {
        GYRE_UNROLL
        for (size_t line = 0; line < Format::kBytes; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(s + kPrefetch + line), _MM_HINT_T0);
        }
      }
      Step<kRows>(Format{}, s, at, sums[p]);
    }
    for (size_t r = 0; r < kRows; ++r) {
      at.data[r] += Format::kBlocks * kBlock;
      at.scale[r] += Format::kBlocks;
      at.sum16[r] += 2 * Format::kBlocks;
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t p = 0; p < kPanels; ++p) {
      for (size_t v = 0; v < static_cast<size_t>(kVecsPerPanel); ++v) {
        const size_t c = p * kPanelColumns + v * kLanes;
        if (c + kLanes <= cols) {
          Store(out + r * ldo + c, sums[p][r][v]);
        } else if (c < cols) {
          StorePart(out + r * ldo + c, sums[p][r][v], cols - c);
        }
      }
    }
  }
}

// All rows over `cols` columns, kPanels panels at a time.
template <typename Format, int kRows, int kPanels>
void PanelRows(const QuantizedRows& x, size_t row, const std::byte* panels, size_t panel_bytes, float* out, size_t ldo,
               size_t cols) {
  constexpr size_t kWidth = kPanels * kPanelColumns;
  size_t c = 0;
  for (; c + kWidth - kPanelColumns < cols; c += kWidth) {
    PanelTile<Format, kRows, kPanels>(x, row, panels + c / kPanelColumns * panel_bytes, panel_bytes, out + c, ldo,
                                      cols - c);
  }
  for (; c < cols; c += kPanelColumns) {
    PanelTile<Format, kRows, 1>(x, row, panels + c / kPanelColumns * panel_bytes, panel_bytes, out + c, ldo, cols - c);
  }
}

template <typename Format>
void PanelDot(const QuantizedRows& x, size_t row, size_t rows, const std::byte* panels, size_t panel_bytes, float* out,
              size_t ldo, size_t cols) {
  size_t r = 0;
  for (; r + kPanelRows <= rows; r += kPanelRows) {
    PanelRows<Format, kPanelRows, 1>(x, row + r, panels, panel_bytes, out + r * ldo, ldo, cols);
  }
  for (; kPanelRows > 2 && r + 2 <= rows; r += 2) {
    PanelRows<Format, 2, 2>(x, row + r, panels, panel_bytes, out + r * ldo, ldo, cols);
  }
  for (; r < rows; ++r) PanelRows<Format, 1, 4>(x, row + r, panels, panel_bytes, out + r * ldo, ldo, cols);
}

}  // namespace
}  // namespace gyre
