#include "model/quoted.h"

#include <algorithm>

#include "fmt/core.h"
#include "model/utf8.h"

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

std::string PrintableSentence(std::string_view text) {
  constexpr size_t kMost = 1000;
  std::string out;
  size_t at = 0;
  while (at < text.size() && at < kMost) {
    const size_t valid = ValidUtf8Length(text, at);
    const char32_t c = valid == 0 ? 0 : Utf8Decode(text, at, valid);
    const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0);
    for (size_t n = std::max<size_t>(valid, 1); n > 0; --n, ++at) {
      if (control) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
      } else {
        out += text[at];
      }
    }
  }
  return at < text.size() ? out + "..." : out;
}

}  // namespace gyre
