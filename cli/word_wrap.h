// The rows of a terminal for a text that comes in pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gyre {

// Moves a word that reaches beyond a terminal's row to the next row. A word is written as it comes, and is erased and
// written again below if it turns out to be too long. Between wide characters, as Chinese ones and emoji, a row may end
// without a space. Lines between two lines that begin with ``` stay as they are. Needs a UTF-8 locale (UseUtf8). Not
// thread-safe.
class WordWrap {
 public:
  // The bytes to write for text that follows all earlier text. columns: of a row, 0 = no end.
  std::string Push(std::string_view text, size_t columns);
  // The cursor is at the beginning of a row, however it came there.
  void NewLine();

 private:
  void Take(std::string_view character, wchar_t code, size_t columns, std::string* out);
  void Break(std::string* out);
  void EndWord();

  std::string partial_;        // the first bytes of a character
  size_t column_ = 0;          // where the next character goes
  std::string word_;           // what of the row may move, behind the last place where it may end
  size_t word_columns_ = 0;    // of word_
  std::string line_head_;      // the first characters of a line, up to three
  bool code_ = false;          // between two lines of ```
  bool row_was_full_ = false;  // the row began because the one above was full: spaces are left out
  bool joined_ = false;        // the next character belongs to the one before it
  bool half_flag_ = false;     // the last character was the first letter of a flag
};

}  // namespace gyre
