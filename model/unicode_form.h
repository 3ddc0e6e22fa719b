// Unicode's normal forms of text that may not be UTF-8. Source: Unicode Standard Annex 15, by utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gyre {

enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Bytes that are not UTF-8 stay, and so does a span with more than a thousand combining marks in a row, whose
// ordering would take quadratic time. Thread-safe.
std::string Normalize(std::string_view text, UnicodeForm form);
inline std::string NormalizeNfc(std::string_view text) { return Normalize(text, UnicodeForm::kNfc); }

}  // namespace gyre
