// Quantized weights as the CPU kernels read them: panels of 16 columns, see docs/kernels.md. Every ISA's file includes
// this, so it has only constants and templates of constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gyre::cpu {

inline constexpr size_t kPanel = 16;          // columns
inline constexpr size_t kBlock = 32;          // positions along k that share a scale of the activations
inline constexpr size_t kGroup = kPanel * 4;  // bytes for 4 positions of all columns, one byte per code
// The coding of a panel's weights.
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
  kMxFp4,
  kNvFp4,
  kI8,
  kQ1,
  kQ2,
  kTernary1,
  kTernary2,
  kIq1S,
  kIq1M,
  kIq2Xxs,
  kIq2Xs,
  kIq2S,
  kIq3Xxs,
  kIq3S
};

// How codebook types say which weights are negative. kEven: of each eight signs seven are stored, the eighth makes the
// number of negative weights even. kShift: the eight weights of a point are all shifted, up or down.
enum class BookSigns : uint8_t { kNone, kAll, kEven, kShift };

// The layout of a unit: a header (scales, minima), then the blocks' codes: nibbles, bit pairs or bytes, then planes of
// the higher bits; for codebook types the indices of points, their higher bits, and signs.
template <PanelType type>
struct PanelLayout {
  using T = PanelType;
  static constexpr bool Any(auto... types) { return ((type == types) || ...); }

  static constexpr PanelType kType = type;
  // Codebook types, and the coordinates of a point.
  static constexpr bool kBook = Any(T::kIq1S, T::kIq1M, T::kIq2Xxs, T::kIq2Xs, T::kIq2S, T::kIq3Xxs, T::kIq3S);
  static constexpr size_t kCoordinates = Any(T::kIq3Xxs, T::kIq3S) ? 4 : 8;
  static constexpr size_t kHighBits = Any(T::kIq1S, T::kIq1M)    ? 3
                                      : type == T::kIq2S         ? 2
                                      : Any(T::kIq2Xs, T::kIq3S) ? 1
                                                                 : 0;  // of an index, beside a byte
  static constexpr BookSigns kSigns = Any(T::kIq2S, T::kIq3S)                  ? BookSigns::kAll
                                      : Any(T::kIq2Xxs, T::kIq2Xs, T::kIq3Xxs) ? BookSigns::kEven
                                      : type == T::kIq1M                       ? BookSigns::kShift
                                                                               : BookSigns::kNone;
  static constexpr float kBookUnit = type == T::kIq3S ? 1 : type == T::kIq3Xxs ? 0.25f : 0.125f;
  static constexpr size_t kIndexBytes = kPanel * kBlock / kCoordinates, kHighAt = kIndexBytes,
                          kSignsAt = kHighAt + kHighBits * kIndexBytes / 8,
                          kSignBytes = kSigns == BookSigns::kAll     ? kPanel * kBlock / 8
                                       : kSigns == BookSigns::kEven  ? kPanel * kBlock / 8 / 8 * 7
                                       : kSigns == BookSigns::kShift ? kPanel * kBlock / 8 / 8
                                                                     : 0;

  static constexpr bool kTernary = type == T::kTernary1, kBinary = type == T::kQ1;  // their codes are packed closer
  // Whether each product first unpacks a segment of a panel, for one row too: codes that take many steps.
  static constexpr bool kUnpackedFirst = kBook || kTernary;
  static constexpr size_t kBits = kBook || Any(T::kQ8, T::kI8)                               ? 8
                                  : type == T::kQ6K                                          ? 6
                                  : Any(T::kQ5, T::kQ5Min, T::kQ5K)                          ? 5
                                  : type == T::kQ3K                                          ? 3
                                  : Any(T::kQ2K, T::kQ1, T::kQ2, T::kTernary1, T::kTernary2) ? 2
                                                                                             : 4;
  // A code means its difference from kZero, or the value in a table; kZero is added to table values where they must not
  // be negative.
  static constexpr bool kIq4 = Any(T::kIq4Nl, T::kIq4Xs), kTable = kIq4 || Any(T::kMxFp4, T::kNvFp4);
  static constexpr bool kSigned = kBits == 8 || kTable;     // signed 8-bit numbers, not small unsigned codes
  static constexpr bool kInt8Tiles = kBits == 8 && !kBook;  // many generated rows use int8 tiles, where there are any
  static constexpr int kZero = kSigned                                           ? 128
                               : type == T::kQ4                                  ? 8
                               : type == T::kQ5                                  ? 16
                               : type == T::kQ6K                                 ? 32
                               : type == T::kQ3K                                 ? 4
                               : Any(T::kQ1, T::kQ2, T::kTernary1, T::kTernary2) ? 1
                                                                                 : 0;
  static constexpr bool kSuper = Any(T::kQ2K, T::kQ3K, T::kQ4K, T::kQ5K, T::kQ6K, T::kIq4Xs);
  static constexpr bool kOneScale = Any(T::kQ1, T::kQ2, T::kTernary1, T::kTernary2);  // for the whole unit
  static constexpr bool kMin = Any(T::kQ4Min, T::kQ5Min, T::kQ4K, T::kQ5K);           // one minimum per block
  // one minimum per half block, in the high nibbles of the scales' bytes
  static constexpr bool kHalfMin = type == T::kQ2K;
  static constexpr bool kWide = type == T::kI8;                  // scales are f32
  static constexpr bool kByteScale = Any(T::kMxFp4, T::kNvFp4);  // scales are 8-bit floats
  static constexpr size_t kScalesPerBlock =
      Any(T::kQ2K, T::kQ3K, T::kQ6K, T::kNvFp4, T::kIq1M, T::kIq2Xs, T::kIq2S) ? 2 : 1;
  static constexpr size_t kBlocks = kSuper || kBook || Any(T::kTernary1, T::kTernary2) ? 8
                                    : kBinary                                          ? 4
                                                                                       : 2;  // blocks per unit
  // Offsets within the header. Super-blocks have d, then -dmin, then bytes; codebook types have d, then nibbles: those
  // of two blocks, or of the halves of a block, share a byte.
  static constexpr size_t kScaleBytes = kWide        ? 4
                                        : kByteScale ? 1
                                                     : 2;  // one scale of one column; not for super-blocks
  static constexpr size_t kMins = 64;                      // the f16 minima; for super-blocks the start of the bytes
  static constexpr size_t kByteMins = 64 + 8 * kPanel;
  static constexpr size_t kNibbles = kPanel * 2;
  static constexpr size_t kHeader = type == T::kIq4Xs ? 64 + 8 * kPanel
                                    : kSuper          ? 64 + 16 * kPanel
                                    : kBook           ? kNibbles + kBlocks * kScalesPerBlock * kPanel / 2
                                    : kOneScale       ? kPanel * 2
                                                : kBlocks * kPanel * (kScalesPerBlock * kScaleBytes + (kMin ? 2 : 0));
  // For ternary digits it is the average, as their bytes belong to all blocks.
  static constexpr size_t kBlockBytes = kBook      ? kSignsAt + kSignBytes
                                        : kTernary ? 13 * kGroup / kBlocks
                                        : kBinary  ? kPanel * kBlock / 8
                                                   : kPanel * kBlock * kBits / 8;
  static constexpr size_t kPlanes = kPanel * kBlock *
                                    (kBits == 8   ? 8
                                     : kBits == 3 ? 2
                                                  : 4) /
                                    8;  // where a block's higher bits begin
  static constexpr size_t kUnitBytes = kHeader + kBlocks * kBlockBytes;
  static constexpr size_t kUnit = kBlocks * kBlock;  // positions
};

// Where the index of point m of a column lies among a block's index bytes, and which bit of the words of higher bits is
// its own. The orders let whole vectors of looked-up points become groups (avx512_books-inl.h).
template <size_t coordinates>
constexpr size_t BookPlace(size_t column, size_t m) {
  if (coordinates == 8) return 8 * (column / 2) + 2 * m + column % 2;
  return 64 * (m / 4) + 16 * (column / 4) + 8 * (m % 4 / 2) + 4 * (column % 4 / 2) + 2 * (m % 2) + column % 2;
}

// Five ternary digits share a byte: group `slot` of a unit, counted over all blocks, is the digit slot / 13 of the
// bytes of vector slot % 13.
inline constexpr size_t kTernaryVectors = 13;

// A segment of a panel, unpacked once for many rows: codes of `bytes` bytes, f32 scales and minima; a unit is one
// block.
template <size_t bytes, size_t scales, bool min, bool half_min>
struct UnpackedLayout {
  static constexpr bool kTable = false, kSuper = false, kWide = true, kMin = min, kHalfMin = half_min, kBook = false,
                        kTernary = false, kBinary = false, kUnpackedFirst = false, kOneScale = false,
                        kByteScale = false;
  static constexpr size_t kBits = 8 * bytes, kScalesPerBlock = scales, kBlocks = 1;
  static constexpr size_t kMins = kScalesPerBlock * kPanel * 4;
  static constexpr size_t kHeader = kMins + (kMin ? 1 : kHalfMin ? 2 : 0) * kPanel * 4;
  static constexpr size_t kBlockBytes = kPanel * kBlock * bytes, kUnitBytes = kHeader + kBlockBytes, kUnit = kBlock;
};
template <typename L, size_t bytes = 1>
using UnpackedOf = UnpackedLayout<bytes, L::kScalesPerBlock, L::kMin, L::kHalfMin>;

// The shape of units of types that are unpacked first, whatever they are; `is_signed` says what PanelLayout::kSigned
// does.
template <size_t scales, bool is_signed>
struct UnpackedFirstShape {
  static constexpr bool kTable = false, kSuper = false, kMin = false, kHalfMin = false, kBook = false, kTernary = false,
                        kBinary = false, kSigned = is_signed;
  static constexpr size_t kBits = is_signed ? 8 : 2, kScalesPerBlock = scales, kBlocks = 8, kUnit = kBlocks * kBlock,
                          kUnitBytes = 1536;  // the average, for prefetches
};
template <typename L>
using ShapeOf = UnpackedFirstShape<L::kScalesPerBlock, L::kSigned>;

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
    case PanelType::kMxFp4: return f.template operator()<PanelType::kMxFp4>();
    case PanelType::kNvFp4: return f.template operator()<PanelType::kNvFp4>();
    case PanelType::kI8: return f.template operator()<PanelType::kI8>();
    case PanelType::kQ1: return f.template operator()<PanelType::kQ1>();
    case PanelType::kQ2: return f.template operator()<PanelType::kQ2>();
    case PanelType::kTernary1: return f.template operator()<PanelType::kTernary1>();
    case PanelType::kTernary2: return f.template operator()<PanelType::kTernary2>();
    case PanelType::kIq1S: return f.template operator()<PanelType::kIq1S>();
    case PanelType::kIq1M: return f.template operator()<PanelType::kIq1M>();
    case PanelType::kIq2Xxs: return f.template operator()<PanelType::kIq2Xxs>();
    case PanelType::kIq2Xs: return f.template operator()<PanelType::kIq2Xs>();
    case PanelType::kIq2S: return f.template operator()<PanelType::kIq2S>();
    case PanelType::kIq3Xxs: return f.template operator()<PanelType::kIq3Xxs>();
    case PanelType::kIq3S: return f.template operator()<PanelType::kIq3S>();
  }
  __builtin_unreachable();
}

}  // namespace gyre::cpu
