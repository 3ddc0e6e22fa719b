// Tables that expand codebook types and ternary digits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/products/panels.h"
#include "kernels/quant_lowbit.h"

namespace gyre::cpu {

struct BookTables {
  // byte[0] has the lower, byte[1] the upper bytes of the packed points (kernels/codebooks.h).
  template <size_t n>
  struct Planes {
    static constexpr size_t kPoints = n;
    alignas(64) uint8_t byte[2][n];
  };
  Planes<256> iq2_xxs, iq3_xxs;
  Planes<512> iq2_xs, iq3_s;
  Planes<1024> iq2_s;
  Planes<2048> iq1;
  alignas(64) uint8_t digit[5][256];  // digit n of a byte (panels.h)
  // IQ3: each point behind four zeros, and zeros behind the last: with a point in the lower or in the upper half of
  // eight bytes, whatever lies beside it is 0 there.
  template <size_t n>
  struct Spread {
    alignas(64) uint32_t words[2 * n + 1];
  };
  Spread<256> spread_iq3_xxs;
  Spread<512> spread_iq3_s;
  const BookPoints* points;

  BookTables();
};
extern const BookTables kBookTables;  // filled before main

template <typename L>
const auto& PlanesOf() {
  using T = PanelType;
  if constexpr (L::kType == T::kIq2Xxs) return kBookTables.iq2_xxs;
  if constexpr (L::kType == T::kIq2Xs) return kBookTables.iq2_xs;
  if constexpr (L::kType == T::kIq2S) return kBookTables.iq2_s;
  if constexpr (L::kType == T::kIq3Xxs) return kBookTables.iq3_xxs;
  if constexpr (L::kType == T::kIq3S) return kBookTables.iq3_s;
  if constexpr (L::kType == T::kIq1S || L::kType == T::kIq1M) return kBookTables.iq1;
}
template <typename L>
const auto* PointsOf() {
  using T = PanelType;
  if constexpr (L::kType == T::kIq2Xxs) return kBookTables.points->iq2_xxs;
  if constexpr (L::kType == T::kIq2Xs) return kBookTables.points->iq2_xs;
  if constexpr (L::kType == T::kIq2S) return kBookTables.points->iq2_s;
  if constexpr (L::kType == T::kIq3Xxs) return kBookTables.points->iq3_xxs;
  if constexpr (L::kType == T::kIq3S) return kBookTables.points->iq3_s;
  if constexpr (L::kType == T::kIq1S || L::kType == T::kIq1M) return kBookTables.points->iq1;
}

template <typename L>
const std::byte* SpreadPointsOf() {
  using T = PanelType;
  if constexpr (L::kType == T::kIq3Xxs) return reinterpret_cast<const std::byte*>(kBookTables.spread_iq3_xxs.words);
  if constexpr (L::kType == T::kIq3S) return reinterpret_cast<const std::byte*>(kBookTables.spread_iq3_s.words);
}

}  // namespace gyre::cpu
