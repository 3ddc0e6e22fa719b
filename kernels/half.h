// Writes and rounds numbers as f16.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/quant.h"

namespace gyre {

inline void StoreHalf(float v, std::byte* to) {
  const uint16_t h = FloatToHalf(v);
  std::memcpy(to, &h, sizeof h);
}
inline float RoundedToHalf(float v) { return HalfToFloat(FloatToHalf(v)); }

}  // namespace gyre
