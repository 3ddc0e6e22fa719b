#include "model/half_floats.h"

#include <cstdint>

#include "kernels/quant.h"

namespace gyre {

void AppendHalves(std::span<const float> values, std::string* out) {
  const size_t at = out->size();
  out->resize(at + values.size() * sizeof(uint16_t));
  char* to = out->data() + at;
  for (const float value : values) {
    const uint16_t half = FloatToHalf(value);
    *to++ = static_cast<char>(half & 0xff);
    *to++ = static_cast<char>(half >> 8);
  }
}

}  // namespace gyre
