// A regular expression of a tokenizer.json, whose dialect is Oniguruma's, compiled by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace gyre {

// The same expression in PCRE2's dialect: `\s` is Unicode's White_Space, `\w` Unicode's word characters, `\h` a
// hexadecimal digit; classes may hold classes and have intersections (&&). kUnimplemented: an escape that means
// something else in PCRE2.
StatusOr<std::string> ToPcre(std::string_view expression);

// Immutable, thread-safe. Bytes that are not UTF-8 belong to no match.
class TextPattern {
 public:
  // kInvalidArgument: an invalid regular expression, with PCRE2's message; else as ToPcre.
  static StatusOr<TextPattern> Compile(std::string_view expression);
  TextPattern(TextPattern&&) noexcept;
  TextPattern& operator=(TextPattern&&) noexcept;
  ~TextPattern();

  struct Match {
    size_t begin = 0, end = 0;  // bytes of the text
  };
  // Finds the first match at or after `from` that is not empty; false: there is none, or a limit of PCRE2 is reached.
  bool Find(std::string_view text, size_t from, Match* match) const;
  // Whether a match may have no characters; Find passes over such matches.
  bool MatchesEmpty() const;
  // Whether a match may begin with some byte of the text; costs less than Find for patterns that are rare.
  bool MayMatch(std::string_view text) const;

 private:
  struct Rep;
  TextPattern();
  std::unique_ptr<const Rep> rep_;
};

}  // namespace gyre
