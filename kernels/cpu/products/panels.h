// Quantized weights as the CPU kernels read them: panels of 16 columns, see docs/kernels.md. Every ISA's file includes
// this, so it has only constants and templates of constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gyre::cpu {

inline constexpr size_t kPanel = 16;          // columns
inline constexpr size_t kBlock = 32;          // positions along k that share a scale of the activations
inline constexpr size_t kGroup = kPanel * 4;  // bytes for 4 positions of all columns, one byte per code
// The coding of a panel's weights. kExpanded: codebook types, whose panels are made during a product.
enum class PanelType : uint8_t {
  kQ8,
  kQ4,
  kQ4Min,
  kQ5,
  kQ5Min,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Nl,
  kIq4Xs,
  kFp4,
  kI8,
  kExpanded
};

// The layout of a unit: a header (scales, minima), then the blocks' codes: nibbles, bit pairs or bytes, then planes of
// the higher bits.
template <PanelType type>
struct PanelLayout {
  using T = PanelType;
  static constexpr bool Any(auto... types) { return ((type == types) || ...); }

  static constexpr size_t kBits = Any(T::kQ8, T::kI8, T::kExpanded) ? 8
                                  : type == T::kQ6K                 ? 6
                                  : Any(T::kQ5, T::kQ5Min, T::kQ5K) ? 5
                                  : type == T::kQ3K                 ? 3
                                  : type == T::kQ2K                 ? 2
                                                                    : 4;
  // A code means its difference from kZero, or the value in a table; kZero is added to table values where they must not
  // be negative.
  static constexpr bool kIq4 = Any(T::kIq4Nl, T::kIq4Xs), kTable = kIq4 || type == T::kFp4;
  static constexpr bool kSigned = kBits == 8 || kTable;  // signed 8-bit numbers, not small unsigned codes
  static constexpr int kZero = kSigned           ? 128
                               : type == T::kQ4  ? 8
                               : type == T::kQ5  ? 16
                               : type == T::kQ6K ? 32
                               : type == T::kQ3K ? 4
                                                 : 0;
  static constexpr bool kSuper = Any(T::kQ2K, T::kQ3K, T::kQ4K, T::kQ5K, T::kQ6K, T::kIq4Xs);
  static constexpr bool kMin = Any(T::kQ4Min, T::kQ5Min, T::kQ4K, T::kQ5K);  // one minimum per block
  // one minimum per half block, in the high nibbles of the scales' bytes
  static constexpr bool kHalfMin = type == T::kQ2K;
  static constexpr bool kWide = Any(T::kFp4, T::kI8, T::kExpanded);  // scales are f32
  static constexpr size_t kScalesPerBlock = Any(T::kQ2K, T::kQ3K, T::kQ6K, T::kExpanded) ? 2 : 1;
  static constexpr size_t kBlocks = kSuper ? 8 : 2;  // blocks per unit
  // Offsets within the header. Super-blocks have d, then -dmin, then bytes.
  static constexpr size_t kScaleBytes = kWide ? 4 : 2;  // one scale of one column; not for super-blocks
  static constexpr size_t kMins = 64;                   // the f16 minima; for super-blocks the start of the bytes
  static constexpr size_t kByteMins = 64 + 8 * kPanel;
  static constexpr size_t kHeader = type == T::kIq4Xs ? 64 + 8 * kPanel
                                    : kSuper          ? 64 + 16 * kPanel
                                             : kBlocks * kPanel * (kScalesPerBlock * kScaleBytes + (kMin ? 2 : 0));
  static constexpr size_t kBlockBytes = kPanel * kBlock * kBits / 8;
  static constexpr size_t kPlanes = kPanel * kBlock *
                                    (kBits == 8   ? 8
                                     : kBits == 3 ? 2
                                                  : 4) /
                                    8;  // where a block's higher bits begin
  static constexpr size_t kUnitBytes = kHeader + kBlocks * kBlockBytes;
  static constexpr size_t kUnit = kBlocks * kBlock;  // positions
};

// A segment of a panel, unpacked once for many rows: codes of `bytes` bytes, f32 scales and minima; a unit is one
// block.
template <size_t bytes, size_t scales, bool min, bool half_min>
struct UnpackedLayout {
  static constexpr bool kTable = false, kSuper = false, kWide = true, kMin = min, kHalfMin = half_min;
  static constexpr size_t kBits = 8 * bytes, kScalesPerBlock = scales, kBlocks = 1;
  static constexpr size_t kMins = kScalesPerBlock * kPanel * 4;
  static constexpr size_t kHeader = kMins + (kMin ? 1 : kHalfMin ? 2 : 0) * kPanel * 4;
  static constexpr size_t kBlockBytes = kPanel * kBlock * bytes, kUnitBytes = kHeader + kBlockBytes, kUnit = kBlock;
};
template <typename L, size_t bytes = 1>
using UnpackedOf = UnpackedLayout<bytes, L::kScalesPerBlock, L::kMin, L::kHalfMin>;

// Positions of a panel whose unpacked codes and scales stay in a cache while all rows pass over them; a multiple of
// every layout's unit.
inline constexpr size_t kCodesSegment = 512;

// Calls f.template operator()<type>() for a type that is known only at run time.
template <typename Fn>
auto WithPanelType(PanelType type, const Fn& f) {
  switch (type) {
    case PanelType::kQ8: return f.template operator()<PanelType::kQ8>();
    case PanelType::kQ4: return f.template operator()<PanelType::kQ4>();
    case PanelType::kQ4Min: return f.template operator()<PanelType::kQ4Min>();
    case PanelType::kQ5: return f.template operator()<PanelType::kQ5>();
    case PanelType::kQ5Min: return f.template operator()<PanelType::kQ5Min>();
    case PanelType::kQ2K: return f.template operator()<PanelType::kQ2K>();
    case PanelType::kQ3K: return f.template operator()<PanelType::kQ3K>();
    case PanelType::kQ4K: return f.template operator()<PanelType::kQ4K>();
    case PanelType::kQ5K: return f.template operator()<PanelType::kQ5K>();
    case PanelType::kQ6K: return f.template operator()<PanelType::kQ6K>();
    case PanelType::kIq4Nl: return f.template operator()<PanelType::kIq4Nl>();
    case PanelType::kIq4Xs: return f.template operator()<PanelType::kIq4Xs>();
    case PanelType::kFp4: return f.template operator()<PanelType::kFp4>();
    case PanelType::kI8: return f.template operator()<PanelType::kI8>();
    case PanelType::kExpanded: return f.template operator()<PanelType::kExpanded>();
  }
  __builtin_unreachable();
}

}  // namespace gyre::cpu
