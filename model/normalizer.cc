#include "model/normalizer.h"

#include <utf8proc.h>

#include "model/sentence_pieces.h"
#include "model/utf8.h"

namespace gyre {

bool IsWhiteSpace(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

namespace {

// Calls fn(character's bytes, code point); a byte that is not UTF-8 has the code point 0xFFFFFFFF.
template <typename Fn>
void ForEachCharacter(std::string_view text, Fn fn) {
  for (size_t at = 0; at < text.size();) {
    const size_t valid = ValidUtf8Length(text, at), length = valid == 0 ? 1 : valid;
    fn(text.substr(at, length), valid == 0 ? char32_t{0xFFFFFFFF} : Utf8Decode(text, at, length));
    at += length;
  }
}

std::string Lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, [&](std::string_view bytes, char32_t c) {
    if (c < 0x80) {
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    } else if (c == 0x130) {
      out += "i\xCC\x87";  // the only letter whose lower case is two characters
    } else if (c == 0xFFFFFFFF) {
      out += bytes;
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &out);
    }
  });
  return out;
}

std::string StripAccents(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, [&](std::string_view bytes, char32_t c) {
    if (c >= 0x300 && c != 0xFFFFFFFF) {
      const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
      if (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME)
        return;
    }
    out += bytes;
  });
  return out;
}

std::string Strip(std::string_view text, bool left, bool right) {
  size_t begin = text.size(), end = 0, at = 0;
  ForEachCharacter(text, [&](std::string_view bytes, char32_t c) {
    if (!IsWhiteSpace(c)) {
      begin = std::min(begin, at);
      end = at + bytes.size();
    }
    at += bytes.size();
  });
  if (!left) begin = 0;
  if (!right) end = text.size();
  return begin < end ? std::string(text.substr(begin, end - begin)) : "";
}

std::string ReplaceSpaces(std::string_view text, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find("  ", at), text.size());
    out += text.substr(at, space - at);
    if (space == text.size()) break;
    out += to;
    at = std::min(text.find_first_not_of(' ', space), text.size());
  }
  return out;
}

std::string Collapse(std::string_view text, bool any_white_space) {
  std::string out;
  out.reserve(text.size());
  bool space = false;
  ForEachCharacter(text, [&](std::string_view bytes, char32_t c) {
    if (c == ' ' || (any_white_space && IsWhiteSpace(c))) {
      space = !out.empty();
      return;
    }
    if (space) out += ' ';
    space = false;
    out += bytes;
  });
  return out;
}

std::string ApplyNmt(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, [&](std::string_view bytes, char32_t c) {
    const bool control =
        (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
    const bool space = c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                       c == 0xFFFD;
    if (space) {
      out += ' ';
    } else if (!control) {
      out += bytes;
    }
  });
  return out;
}

std::string ReplacePattern(std::string_view text, const TextPattern& pattern, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (TextPattern::Match m; pattern.Find(text, at, &m); at = m.end) {
    out += text.substr(at, m.begin - at);
    out += to;
  }
  return out += text.substr(at);
}

std::string ApplyStep(std::string_view text, const NormalizerStep& s) {
  using Kind = NormalizerStep::Kind;
  switch (s.kind) {
    case Kind::kCharsmap: return s.charsmap->Apply(text);
    case Kind::kReplace: return ReplaceAll(text, s.from, s.to);
    case Kind::kReplacePattern: return ReplacePattern(text, *s.pattern, s.to);
    case Kind::kReplaceSpaces: return ReplaceSpaces(text, s.to);
    case Kind::kPrepend: return text.empty() ? "" : s.to + std::string(text);
    case Kind::kForm: return Normalize(text, s.form);
    case Kind::kLowercase: return Lowercase(text);
    case Kind::kNmt: return ApplyNmt(text);
    case Kind::kStripAccents: return StripAccents(text);
    case Kind::kStrip: return Strip(text, s.left, s.right);
    case Kind::kCollapseSpaces: return Collapse(text, false);
    case Kind::kCollapseWhiteSpace: return Collapse(text, true);
  }
  return std::string(text);
}

}  // namespace

std::string Normalize(std::string_view text, const std::vector<NormalizerStep>& steps) {
  if (steps.empty()) return std::string(text);
  std::string out = ApplyStep(text, steps[0]);
  for (size_t i = 1; i < steps.size(); ++i) out = ApplyStep(out, steps[i]);
  return out;
}

}  // namespace gyre
