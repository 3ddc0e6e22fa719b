// UTF-8 for the tokenizers: the length of a character, and whether bytes are valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gyre {

// Whether the byte is one of a character but its first.
inline bool ContinuesUtf8(char byte) { return (static_cast<uint8_t>(byte) & 0xC0u) == 0x80u; }

// The length of the character that begins here; 0 if the bytes are no valid character (overlong, surrogate, cut).
inline size_t ValidUtf8Length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0u; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned b = byte(0);
  if (b < 0x80) return at < text.size() ? 1 : 0;
  if (b >= 0xC2 && b < 0xE0 && tail(1)) return 2;
  if (b >= 0xE0 && b < 0xF0 && tail(1) && tail(2)) {
    if (b == 0xE0 && byte(1) < 0xA0) return 0;
    if (b == 0xED && byte(1) >= 0xA0) return 0;
    return 3;
  }
  if (b >= 0xF0 && b < 0xF5 && tail(1) && tail(2) && tail(3)) {
    if (b == 0xF0 && byte(1) < 0x90) return 0;
    if (b == 0xF4 && byte(1) >= 0x90) return 0;
    return 4;
  }
  return 0;
}

// Whether the bytes are the first ones of a character whose other bytes are missing. REQUIRES: one byte or more.
inline bool BeginsUtf8(std::string_view bytes) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first < 0xC2 || first > 0xF4) return false;
  const size_t whole = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (bytes.size() >= whole) return false;
  for (const char c : bytes.substr(1)) {
    if (!ContinuesUtf8(c)) return false;
  }
  return true;
}

// Like ValidUtf8Length, but 1 for a byte that belongs to no character.
inline size_t Utf8Length(std::string_view text, size_t at) {
  const size_t n = ValidUtf8Length(text, at);
  return n == 0 ? 1 : n;
}

// The code point of a character of `length` valid bytes.
inline char32_t Utf8Decode(std::string_view text, size_t at, size_t length) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  if (length == 1) return byte(0);
  char32_t c = byte(0) & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) c = (c << 6) | (byte(i) & 0x3Fu);
  return c;
}

// REQUIRES: c is no surrogate and at most U+10FFFF.
inline void AppendUtf8(char32_t c, std::string* out) {
  const auto put = [&](char32_t v) { out->push_back(static_cast<char>(v)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

}  // namespace gyre
