#include "model/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "model/utf8.h"

namespace gyre {
namespace {

constexpr size_t kMaxMarks = 1000;

// Whether the ordering of marks may move a character. Three Tibetan letters have class 0 but decompose into two
// marks each.
bool IsMark(char32_t c) {
  if (c < 0x300) return false;
  return c == 0xF73 || c == 0xF75 || c == 0xF81 ||
         utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0;
}

// REQUIRES: valid UTF-8.
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

// Normalizes a text in which every character may change or change others.
void NormalizeRun(std::string_view text, UnicodeForm form, std::string* result) {
  std::string& out = *result;
  size_t begin = 0;        // of the valid span that is not yet put out
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
}

// Whether form C changes neither the character nor, because of it, the one before.
bool StaysInNfc(char32_t c) {
  if (c < 0x300) return true;
  if (c >= 0x1100 && c < 0x1200) return false;  // letters that become a syllable
  const utf8proc_property_t* p = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  return p->combining_class == 0 && p->decomp_seqindex == UINT16_MAX && p->comb_index == UINT16_MAX;
}

}  // namespace

// An ASCII character never composes with the one before it, so each begins a run; runs without changes are copied.
std::string Normalize(std::string_view text, UnicodeForm form) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t ascii_end = at;
    while (ascii_end < text.size() && static_cast<uint8_t>(text[ascii_end]) < 0x80) ++ascii_end;
    const size_t begin = ascii_end > at ? ascii_end - 1 : at;  // of ASCII in a row only the last may be changed
    out += text.substr(at, begin - at);
    bool stays = true;
    for (at = ascii_end; at < text.size() && static_cast<uint8_t>(text[at]) >= 0x80;) {
      const size_t length = ValidUtf8Length(text, at);
      if (length > 0 && stays) stays = form == UnicodeForm::kNfc && StaysInNfc(Utf8Decode(text, at, length));
      at += std::max<size_t>(length, 1);
    }
    if (stays) {
      out += text.substr(begin, at - begin);
    } else {
      NormalizeRun(text.substr(begin, at - begin), form, &out);
    }
  }
  return out;
}

}  // namespace gyre
