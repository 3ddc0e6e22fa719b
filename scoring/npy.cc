#include "scoring/npy.h"

#include "fmt/format.h"

namespace gyre {

std::string NpyHeader(std::string_view type, std::span<const uint64_t> shape) {
  std::string dict = fmt::format("{{'descr': {}, 'fortran_order': False, 'shape': (", type);
  // Python's tuple of one element has a comma behind it.
  for (size_t i = 0; i < shape.size(); ++i)
    dict += fmt::format("{}{}{}", i == 0 ? "" : " ", shape[i], i + 1 < shape.size() || i == 0 ? "," : "");
  dict += ")}";
  const size_t begin = kNpyMagic.size() + sizeof(uint16_t);
  dict.resize((begin + dict.size() + 1 + 63) / 64 * 64 - begin, ' ');
  dict.back() = '\n';
  std::string out(kNpyMagic);
  // Little-endian, whatever this machine is.
  out += static_cast<char>(dict.size() & 0xff);
  out += static_cast<char>(dict.size() >> 8);
  return out + dict;
}

}  // namespace gyre
