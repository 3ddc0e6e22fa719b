// The header of numpy's file format, version 1.0. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gyre {

inline constexpr std::string_view kNpyMagic("\x93NUMPY\x01\x00", 8);

// The bytes before the elements, which lie in C order, little-endian. `type`: as Python writes it in the header, with
// its quotes or brackets ("'<f4'"). The elements begin at a multiple of 64. (numpy, numpy.lib.format.)
std::string NpyHeader(std::string_view type, std::span<const uint64_t> shape);

}  // namespace gyre
