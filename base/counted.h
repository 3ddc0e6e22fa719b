// Numbers of things in sentences for people: "1 worker", "2 workers".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fmt/core.h"

namespace gyre {

// "1 worker has" or "3 workers have". `many`: what follows another number than 1.
inline std::string Counted(uint64_t n, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}
// The many of it have an s.
inline std::string Counted(uint64_t n, std::string_view one) {
  return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s");
}

}  // namespace gyre
