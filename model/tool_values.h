// Values in calls of tools as JSON. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gyre {

// The text as a JSON string, without its quotes. Bytes that are no UTF-8 stay as they are, so a text may come in parts.
std::string JsonEscaped(std::string_view text);
std::string JsonQuoted(std::string_view text);

// A value in a form that has no types of its own: JSON if it is that, or Python's True, False and None; else a text.
std::string JsonOrText(std::string_view value, bool names_may_repeat = false);

// Finds the end of a literal in a text that comes in parts: quotes and brackets are closed, and a comma or a bracket
// stands behind. One for each literal.
class LiteralEnd {
 public:
  // Python's quotes.
  LiteralEnd() = default;
  // `quote` stands around texts, in which nothing is escaped.
  explicit LiteralEnd(std::string_view quote) : quote_(quote) {}
  // `text` begins with the literal, and with the text of the call before. npos: it goes on beyond the text.
  size_t Find(std::string_view text);

 private:
  std::string_view QuoteAt(std::string_view text) const;

  std::string_view quote_;
  std::string open_, closing_;  // brackets that are open; the quote that ends the text which is read, or ""
  size_t at_ = 0;
};

// The whole text as a literal of Python, or one of JSON's words, with space around it. nullopt: it is none.
std::optional<std::string> PythonToJson(std::string_view text);

// The whole text as a value of Gemma's form, where `quote` stands around texts, in which nothing is escaped.
std::optional<std::string> BracesToJson(std::string_view quote, std::string_view text);

}  // namespace gyre
