// A model's text as a terminal may have it.
#pragma once

#include <string>
#include <string_view>

namespace gyre {

// Writes control characters as \xNN, so that a model, or whoever wrote what it read, can't send sequences to the
// terminal. Ends of lines and tabs stay. The text comes in pieces, which may cut characters. Not thread-safe.
class TerminalText {
 public:
  // The bytes to write for text that follows all earlier text.
  std::string Push(std::string_view text);
  // The bytes to write for the beginning of a character that never ended.
  std::string End();

 private:
  std::string held_;  // the rest comes with the next piece
};

}  // namespace gyre
