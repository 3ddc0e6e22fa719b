// Enumerations whose values have names.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace gyre {

// The value of that name, where names[i] is that of the value i; nullopt: there is none.
template <typename Enum, size_t kCount>
constexpr std::optional<Enum> ValueOfName(const std::array<std::string_view, kCount>& names, std::string_view name) {
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace gyre
