#include "model/quoted.h"

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

std::string PrintableCharacter(std::string_view bytes) {
  const size_t valid = ValidUtf8Length(bytes, 0);
  const char32_t c = valid == 0 ? 0 : Utf8Decode(bytes, 0, valid);
  if (c >= 0x20 && (c < 0x7F || c >= 0xA0)) return std::string(bytes);
  std::string out;
  for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return out;
}

std::string PrintableSentence(std::string_view text) {
  constexpr size_t kMost = 1000;
  std::string out;
  size_t at = 0;
  while (at < text.size() && at < kMost) {
    const size_t length = Utf8Length(text, at);
    out += PrintableCharacter(text.substr(at, length));
    at += length;
  }
  return at < text.size() ? out + "..." : out;
}

}  // namespace gyre
