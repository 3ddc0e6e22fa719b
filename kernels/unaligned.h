// Loads a number from bytes at any address; little-endian, as files and supported processors are.
#pragma once

#include <cstddef>
#include <cstring>

namespace gyre {

template <typename T>
T LoadUnaligned(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace gyre
