#include "cli/terminal_text.h"

#include <utility>

#include "model/quoted.h"
#include "model/utf8.h"

namespace gyre {

std::string TerminalText::Push(std::string_view text) {
  held_ += text;
  std::string out;
  size_t at = 0;
  while (at < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(at);
    if (rest == "\r" || BeginsUtf8(rest)) break;
    const std::string_view character = rest.substr(0, Utf8Length(rest, 0));
    at += character.size();
    if (rest.substr(0, 2) == "\r\n") continue;  // the end of the line is the \n
    if (character == "\n" || character == "\t") {
      out += character;
    } else {
      out += PrintableCharacter(character);
    }
  }
  held_.erase(0, at);
  return out;
}

std::string TerminalText::End() {
  std::string out;
  for (const char byte : std::exchange(held_, {})) out += PrintableCharacter({&byte, 1});
  return out;
}

}  // namespace gyre
