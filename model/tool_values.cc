#include "model/tool_values.h"

#include <algorithm>
#include <cstdint>

#include "base/hex.h"
#include "model/json_scanner.h"
#include "model/marked_text.h"
#include "model/utf8.h"

namespace gyre {
namespace {

constexpr int kDeepestLiteral = 100;
constexpr size_t kNowhere = std::string_view::npos;

void SkipSpace(std::string_view* text) {
  text->remove_prefix(std::min(text->find_first_not_of(kJsonSpace), text->size()));
}
bool Take(std::string_view what, std::string_view* text) {
  if (!text->starts_with(what)) return false;
  text->remove_prefix(what.size());
  return true;
}

std::optional<char32_t> TakeHex(size_t digits, std::string_view* text) {
  if (text->size() < digits) return std::nullopt;
  char32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const int digit = HexValue((*text)[i]);
    if (digit < 0) return std::nullopt;
    value = value * 16 + static_cast<char32_t>(digit);
  }
  text->remove_prefix(digits);
  return value;
}

// What stands behind a backslash.
bool TakePythonEscape(std::string_view* text, std::string* out) {
  if (text->empty()) return false;
  const char c = text->front();
  text->remove_prefix(1);
  constexpr std::string_view kNames = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
  if (c == '\n') return true;
  if (const size_t i = kNames.find(c); i != kNowhere) {
    *out += kMeanings[i];
    return true;
  }
  if (c >= '0' && c <= '7') {
    auto value = static_cast<char32_t>(c - '0');
    for (int i = 0; i < 2 && !text->empty() && text->front() >= '0' && text->front() <= '7'; ++i) {
      value = value * 8 + static_cast<char32_t>(text->front() - '0');
      text->remove_prefix(1);
    }
    AppendUtf8(value, out);
    return true;
  }
  const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (digits == 0) {  // Python keeps the backslash
    *out += '\\';
    *out += c;
    return true;
  }
  std::optional<char32_t> code = TakeHex(digits, text);
  if (!code) return false;
  // Pairs are JSON's way, which models mix in.
  if (*code >= 0xD800 && *code < 0xDC00 && text->starts_with("\\u")) {
    std::string_view rest = text->substr(2);
    const std::optional<char32_t> low = TakeHex(4, &rest);
    if (low && *low >= 0xDC00 && *low < 0xE000) {
      code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
      *text = rest;
    }
  }
  if (*code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000)) return false;
  AppendUtf8(*code, out);
  return true;
}

bool BeginsPythonString(std::string_view text, bool* raw) {
  *raw = text.size() > 1 && (text[0] == 'r' || text[0] == 'R') && (text[1] == '\'' || text[1] == '"');
  return *raw || (!text.empty() && (text[0] == '\'' || text[0] == '"'));
}

std::string_view PythonQuote(std::string_view text) {
  const std::string_view three = text.substr(0, 3);
  return three == "'''" || three == "\"\"\"" ? three : text.substr(0, 1);
}

std::optional<std::string> TakePythonString(std::string_view* text) {
  bool raw = false;
  if (!BeginsPythonString(*text, &raw)) return std::nullopt;
  if (raw) text->remove_prefix(1);
  const std::string_view quote = PythonQuote(*text);
  text->remove_prefix(quote.size());
  std::string out;
  while (!Take(quote, text)) {
    if (text->empty()) return std::nullopt;
    const char c = text->front();
    if (c == kMarkBegin || c == kMarkEnd) return std::nullopt;
    text->remove_prefix(1);
    if (c != '\\') {
      out += c;
    } else if (raw) {
      if (text->empty()) return std::nullopt;
      out += c;
      out += text->front();
      text->remove_prefix(1);
    } else if (!TakePythonEscape(text, &out)) {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<std::string> TakePythonNumber(std::string_view* text) {
  std::string number;
  size_t i = 0;
  while (i < text->size() && (IsJsonDigit((*text)[i]) || std::string_view("+-._eE").find((*text)[i]) != kNowhere)) {
    if ((*text)[i] != '_') number += (*text)[i];
    ++i;
  }
  if (number.starts_with('+')) number.erase(0, 1);
  const size_t first = number.starts_with('-') ? 1 : 0;
  if (number.size() > first && number[first] == '.') number.insert(first, "0");
  // "1." and "1.e5" are numbers of Python alone.
  if (const size_t point = number.find('.');
      point != kNowhere && (point + 1 == number.size() || !IsJsonDigit(number[point + 1]))) {
    number.insert(point + 1, "0");
  }
  if (number.empty() || !IsJson(number)) return std::nullopt;
  text->remove_prefix(i);
  return number;
}

std::optional<std::string> TakePython(std::string_view* text, int depth);

// Items up to the closing bracket; `pairs`: names and values.
std::optional<std::string> TakePythonItems(std::string_view close, bool pairs, std::string_view* text, int depth) {
  std::string out = pairs ? "{" : "[";
  for (bool first = true;; first = false) {
    SkipSpace(text);
    if (Take(close, text)) break;
    if (!first) {
      if (!Take(",", text)) return std::nullopt;
      SkipSpace(text);
      if (Take(close, text)) break;
      out += ", ";
    }
    const std::optional<std::string> item = TakePython(text, depth);
    if (!item) return std::nullopt;
    if (!pairs) {
      out += *item;
      continue;
    }
    out += item->starts_with('"') ? *item : JsonQuoted(*item);
    SkipSpace(text);
    if (!Take(":", text)) return std::nullopt;
    const std::optional<std::string> value = TakePython(text, depth);
    if (!value) return std::nullopt;
    out += ": " + *value;
  }
  return out + (pairs ? "}" : "]");
}

std::optional<std::string> TakePython(std::string_view* text, int depth) {
  if (depth > kDeepestLiteral) return std::nullopt;
  SkipSpace(text);
  bool raw = false;
  if (BeginsPythonString(*text, &raw)) {
    std::string all;
    // Strings side by side are one.
    while (BeginsPythonString(*text, &raw)) {
      const std::optional<std::string> part = TakePythonString(text);
      if (!part) return std::nullopt;
      all += *part;
      std::string_view rest = *text;
      SkipSpace(&rest);
      if (BeginsPythonString(rest, &raw)) *text = rest;
    }
    return JsonQuoted(all);
  }
  if (Take("{", text)) return TakePythonItems("}", true, text, depth + 1);
  if (Take("[", text)) return TakePythonItems("]", false, text, depth + 1);
  if (Take("(", text)) return TakePythonItems(")", false, text, depth + 1);
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"True", "true"}, {"False", "false"}, {"None", "null"}, {"true", "true"}, {"false", "false"}, {"null", "null"}};
  for (const auto& [word, meaning] : kWords) {
    if (Take(word, text)) return std::string(meaning);
  }
  return TakePythonNumber(text);
}

std::optional<std::string> TakeBraces(std::string_view quote, std::string_view* text, int depth) {
  if (depth > kDeepestLiteral) return std::nullopt;
  if (Take(quote, text)) {
    const size_t end = text->find(quote);
    if (end == kNowhere) return std::nullopt;
    std::string out = JsonQuoted(Unmarked(text->substr(0, end)));
    text->remove_prefix(end + quote.size());
    return out;
  }
  const bool object = text->starts_with('{');
  if (object || text->starts_with('[')) {
    text->remove_prefix(1);
    const std::string_view close = object ? "}" : "]";
    std::string out = object ? "{" : "[";
    for (bool first = true; SkipSpace(text), !Take(close, text); first = false) {
      if (!first) {
        if (!Take(",", text)) return std::nullopt;
        SkipSpace(text);
        out += ", ";
      }
      if (object) {
        std::optional<std::string> key;
        if (text->starts_with(quote)) {
          key = TakeBraces(quote, text, depth + 1);
          if (!key || !Take(":", text)) return std::nullopt;
        } else {
          const size_t colon = text->find(':');
          if (colon == kNowhere) return std::nullopt;
          key = JsonQuoted(Unmarked(text->substr(0, colon)));
          text->remove_prefix(colon + 1);
        }
        out += *key + ": ";
      }
      const std::optional<std::string> value = TakeBraces(quote, text, depth + 1);
      if (!value) return std::nullopt;
      out += *value;
    }
    return out + (object ? "}" : "]");
  }
  const size_t end = std::min(text->find_first_of(",}]"), text->size());
  const std::string_view bare = text->substr(0, end);
  if (end == 0 || bare.find(kMarkBegin) != kNowhere) return std::nullopt;
  text->remove_prefix(end);
  return JsonOrText(bare);
}

}  // namespace

std::string JsonEscaped(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

std::string JsonQuoted(std::string_view text) { return '"' + JsonEscaped(text) + '"'; }

std::string JsonOrText(std::string_view value, bool names_may_repeat) {
  const size_t first = std::min(value.find_first_not_of(kJsonSpace), value.size());
  std::string_view bare = value.substr(first);
  bare = bare.substr(0, bare.find_last_not_of(kJsonSpace) + 1);
  if (bare == "True") return "true";
  if (bare == "False") return "false";
  if (bare == "None") return "null";
  return IsJson(bare, names_may_repeat) ? std::string(bare) : JsonQuoted(Unmarked(value));
}

std::string_view LiteralEnd::QuoteAt(std::string_view text) const {
  if (!quote_.empty()) return text.starts_with(quote_) ? quote_ : std::string_view();
  return text[0] == '\'' || text[0] == '"' ? PythonQuote(text) : std::string_view();
}

size_t LiteralEnd::Find(std::string_view text) {
  const bool python = quote_.empty();
  while (at_ < text.size()) {
    const std::string_view rest = text.substr(at_);
    if (!closing_.empty()) {
      if (rest.starts_with(closing_)) {
        at_ += closing_.size();
        closing_.clear();
      } else if (closing_.starts_with(rest)) {
        return kNowhere;
      } else if (python && rest[0] == '\\') {
        if (rest.size() < 2) return kNowhere;
        at_ += 2;
      } else {
        ++at_;
      }
      continue;
    }
    // What begins a quote may become all of it, and two quotes may become three.
    if (!python && quote_.size() > rest.size() && quote_.starts_with(rest)) return kNowhere;
    const std::string_view quote = QuoteAt(rest);
    if (python && quote.size() == 1 && rest.size() < 3 && rest.find_first_not_of(rest[0]) == kNowhere) return kNowhere;
    if (!quote.empty()) {
      closing_ = quote;
      at_ += quote.size();
      continue;
    }
    const char c = rest[0];
    if (c == '{' || c == '[' || (python && c == '(')) open_ += c;
    if (open_.empty() && (c == ',' || c == ']' || c == '}' || (python && c == ')'))) return at_;
    if ((c == '}' || c == ']' || (python && c == ')')) && !open_.empty()) open_.pop_back();
    ++at_;
  }
  return kNowhere;
}

std::optional<std::string> PythonToJson(std::string_view text) {
  std::optional<std::string> out = TakePython(&text, 0);
  if (text.find_first_not_of(kJsonSpace) != kNowhere) return std::nullopt;
  return out;
}

std::optional<std::string> BracesToJson(std::string_view quote, std::string_view text) {
  std::optional<std::string> out = TakeBraces(quote, &text, 0);
  if (text.find_first_not_of(kJsonSpace) != kNowhere) return std::nullopt;
  return out;
}

}  // namespace gyre
