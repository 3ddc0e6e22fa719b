#include "model/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "model/utf8.h"

namespace gyre {
namespace {

constexpr size_t kMaxMarks = 1000;

// The first character that anything composes with is U+0300; all else changes nothing below U+0080.
bool SurelyNormal(std::string_view text, UnicodeForm form) {
  const uint8_t first = form == UnicodeForm::kNfc ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(), [&](char c) { return static_cast<uint8_t>(c) < first; });
}

// What takes part in the ordering of marks. Three letters of Tibetan are none, but two marks each when taken apart.
bool IsMark(char32_t c) {
  if (c < 0x300) return false;
  return c == 0xF73 || c == 0xF75 || c == 0xF81 ||
         utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0;
}

// Valid UTF-8.
void AppendNormal(std::string_view text, UnicodeForm form, std::string* out) {
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* normal = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &normal, static_cast<utf8proc_option_t>(options));
  if (n < 0) {
    *out += text;
    return;
  }
  out->append(reinterpret_cast<const char*>(normal), static_cast<size_t>(n));
  std::free(normal);
}

}  // namespace

std::string Normalize(std::string_view text, UnicodeForm form) {
  std::string out;
  if (SurelyNormal(text, form)) return std::string(text);
  out.reserve(text.size());
  size_t begin = 0;        // of the valid stretch that is not yet put out
  size_t marks = 0;        // combining marks in a row
  size_t marks_begin = 0;  // where they and their base begin
  bool too_many = false;
  size_t base = 0;
  auto flush = [&](size_t end) {
    if (end <= begin) return;
    if (too_many) {
      AppendNormal(text.substr(begin, marks_begin - begin), form, &out);
      out += text.substr(marks_begin, end - marks_begin);
    } else {
      AppendNormal(text.substr(begin, end - begin), form, &out);
    }
    begin = end;
    too_many = false;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t length = ValidUtf8Length(text, at);
    if (length == 0) {
      flush(at);
      out += text[at];
      begin = ++at;
      marks = 0;
      base = at;
      continue;
    }
    if (IsMark(Utf8Decode(text, at, length))) {
      if (++marks > kMaxMarks && !too_many) {
        too_many = true;
        marks_begin = base;
      }
    } else {
      if (too_many) flush(at);
      marks = 0;
      base = at;
    }
    at += length;
  }
  flush(text.size());
  return out;
}

}  // namespace gyre
