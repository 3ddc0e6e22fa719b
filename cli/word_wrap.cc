#include "cli/word_wrap.h"

#include <wchar.h>

#include <algorithm>
#include <utility>

#include "fmt/core.h"
#include "model/utf8.h"

namespace gyre {
namespace {

constexpr wchar_t kJoiner = 0x200d, kAsEmoji = 0xfe0f, kUnreadable = 0xfffd;

bool IsSkinTone(wchar_t c) { return c >= 0x1f3fb && c <= 0x1f3ff; }
bool IsFlagLetter(wchar_t c) { return c >= 0x1f1e6 && c <= 0x1f1ff; }

// The columns of a character. Where terminals differ it is the most that one takes: a row that ends early does no harm.
size_t Columns(wchar_t c) {
  if (IsFlagLetter(c)) return 2;
  if (c == kAsEmoji) return 1;  // the character before it may become wide
  const int width = wcwidth(c);
  return width < 0 ? 2 : static_cast<size_t>(width);
}

}  // namespace

std::string WordWrap::Push(std::string_view text, size_t columns) {
  std::string out;
  partial_ += text;
  size_t at = 0;
  while (at < partial_.size()) {
    const size_t length = Utf8Length(partial_, at);
    const bool valid = ValidUtf8Length(partial_, at) > 0;
    if (!valid && BeginsUtf8(std::string_view(partial_).substr(at))) break;  // the rest comes with the next piece
    Take(std::string_view(partial_).substr(at, length),
         valid ? static_cast<wchar_t>(Utf8Decode(partial_, at, length)) : kUnreadable, columns, &out);
    at += length;
  }
  partial_.erase(0, at);
  return out;
}

void WordWrap::NewLine() {
  column_ = 0;
  line_head_.clear();
  row_was_full_ = false;
  EndWord();
}

void WordWrap::EndWord() {
  word_.clear();
  word_columns_ = 0;
}

void WordWrap::Break(std::string* out) {
  *out += '\n';
  column_ = 0;
  EndWord();
}

void WordWrap::Take(std::string_view character, wchar_t code, size_t columns, std::string* out) {
  const bool belongs = std::exchange(joined_, code == kJoiner) || code == kAsEmoji || IsSkinTone(code) ||
                       (IsFlagLetter(code) && half_flag_);
  half_flag_ = IsFlagLetter(code) && !half_flag_;
  if (code == L'\n' || code == L'\r') {
    *out += character;
    if (code == L'\n') NewLine();
    column_ = 0;
    return;
  }
  if (line_head_.size() < 3 && !(line_head_.empty() && code == L' ')) {
    line_head_ += code < 0x80 ? static_cast<char>(code) : '?';
    if (line_head_ == "```") code_ = !code_;
  }
  if (columns == 0 || code_ || line_head_ == "```" || (code < 0x20 && code != L'\t')) {
    *out += character;
    return;
  }
  if (code == L' ' || code == L'\t') {
    if (row_was_full_) return;
    const size_t step = code == L' ' ? 1 : 8 - column_ % 8;
    EndWord();
    if (column_ + step > columns) {
      Break(out);
      row_was_full_ = true;
      return;
    }
    *out += character;
    column_ += step;
    return;
  }
  row_was_full_ = false;
  const size_t width = Columns(code);
  if (width == 2 || belongs) {
    if (!belongs && column_ + width > columns && column_ > 0) Break(out);
    *out += character;
    column_ += width;
    EndWord();
    return;
  }
  if (width > 0 && column_ + width > columns && column_ > 0) {
    if (word_columns_ == 0 || word_columns_ >= column_) {
      Break(out);
    } else {
      // From the row's beginning: the cursor stands on the last column or behind it, which terminals don't tell.
      const size_t begin = column_ - word_columns_;
      *out += fmt::format("\r\033[{}C\033[K\n{}", begin, word_);
      column_ = word_columns_;
    }
  }
  *out += character;
  word_ += character;
  word_columns_ += width;
  column_ += width;
}

}  // namespace gyre
