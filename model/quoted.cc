#include "model/quoted.h"

#include "fmt/core.h"

namespace gyre {

std::string Printable(std::string_view text) {
  constexpr size_t kMost = 64;
  std::string out;
  for (char c : text.substr(0, kMost)) {
    if (c >= 0x20 && c < 0x7F && c != '"' && c != '\\') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text.size() > kMost ? out + "..." : out;
}

}  // namespace gyre
