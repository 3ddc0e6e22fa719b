// Names of tensors that GGUF has beside weights.
#pragma once

#include <string>
#include <string_view>

namespace gyre {

// The name with another end; "" if it does not end so.
inline std::string Sibling(std::string_view name, std::string_view end, std::string_view other) {
  if (!name.ends_with(end)) return "";
  return std::string(name.substr(0, name.size() - end.size())) + std::string(other);
}
// The scale of the second level: "X.scale" for "X.weight"; "" for other names.
inline std::string ScaleNameOf(std::string_view weight) { return Sibling(weight, ".weight", ".scale"); }

}  // namespace gyre
