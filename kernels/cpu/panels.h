// Quantized weights as the CPU kernels read them: panels of 16 columns, see docs/kernels.md. Included by every ISA's file, so
// constants and inline templates of constants only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gyre::cpu {

inline constexpr size_t kPanel = 16;             // columns
inline constexpr size_t kBlock = 32;             // positions along k with a scale of the activations
inline constexpr size_t kGroup = kPanel * 4;     // bytes of 4 positions of all columns, a byte a code
enum class PanelType : uint8_t { kQ8, kQ4, kQ4Min, kQ5, kQ5Min, kQ4K, kQ5K, kQ6K };

// The layout of a unit: header (scales, minima), then the blocks' codes: nibbles or bytes, then planes of higher bits.
template <PanelType type>
struct PanelLayout {
  static constexpr bool kSuper = type == PanelType::kQ4K || type == PanelType::kQ5K || type == PanelType::kQ6K;
  static constexpr bool kMin = type == PanelType::kQ4Min || type == PanelType::kQ5Min || type == PanelType::kQ4K || type == PanelType::kQ5K;
  static constexpr size_t kBits = type == PanelType::kQ8                                                                       ? 8
                                  : type == PanelType::kQ6K                                                                    ? 6
                                  : type == PanelType::kQ5 || type == PanelType::kQ5Min || type == PanelType::kQ5K ? 5
                                                                                                                                : 4;
  static constexpr size_t kScalesPerBlock = type == PanelType::kQ6K ? 2 : 1;
  static constexpr size_t kBlocks = kSuper ? 8 : 2;  // a unit
  // Offsets within the header; of super-blocks d, then -dmin, then bytes.
  static constexpr size_t kMins = 64;  // f16 minima; of super-blocks where the bytes begin
  static constexpr size_t kByteMins = 64 + 8 * kPanel;
  static constexpr size_t kHeader = kSuper ? 64 + 16 * kPanel : kMin ? 128 : 64;
  static constexpr size_t kBlockBytes = kPanel * kBlock * kBits / 8;
  static constexpr size_t kPlanes = kPanel * kBlock * (kBits == 8 ? 8 : 4) / 8;  // where a block's higher bits begin
  static constexpr size_t kUnitBytes = kHeader + kBlocks * kBlockBytes;
  static constexpr size_t kUnit = kBlocks * kBlock;  // positions
};

}  // namespace gyre::cpu
