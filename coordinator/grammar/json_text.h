// The texts of JSON's values under limits, as expressions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/grammar/code_points.h"
#include "coordinator/grammar/expressions.h"
#include "coordinator/grammar/schema_alternatives.h"

namespace gyre::grammar {

// How strings and words are written: as JSON has them, or as the calls of a family of models do.
struct JsonStyle {
  enum class Kind : uint8_t {
    kJson,
    kPython,  // strings in either of Python's quotes, True beside true
    kBraces,  // texts between `quote` as they are; names that are one word without it; no white space
  };
  Kind kind = Kind::kJson;
  std::string quote;
  std::string avoid;  // what no string has in it; "": nothing
};

// Not thread-safe.
class JsonText {
 public:
  // compact: no white space at all; else any, but at most 16 characters in a row with 2 line feeds.
  JsonText(Expressions* e, bool compact, JsonStyle style = {});

  ExprId space() const { return space_; }
  // null, true or false.
  ExprId Word(JsonKind kind);
  // A string value. The texts of `except` are none. Errors as of String.
  StatusOr<ExprId> StringValue(const StringLimits& limits, const std::vector<std::string>& except);
  ExprId StringLiteral(const std::string& text);
  // Names in objects: the listed one as a whole; the others without their quotes, to be put into NameQuotes.
  ExprId Name(const std::string& name);
  Writing name_writing() const;
  std::string InnerName(const std::string& name) const;
  ExprId NameQuotes(ExprId inner);
  // The same without the texts that have it in them. "": all of them.
  ExprId Without(ExprId texts, const std::string& part);
  // Errors: a pattern's or a format's; a bound.
  StatusOr<ExprId> Number(const NumberLimits& limits);
  // Without quotes.
  StatusOr<ExprId> String(const StringLimits& limits, Writing writing);
  StatusOr<bool> Matches(const StringLimits::Match& match, std::string_view text);
  // A number in its ways of writing: 1, 1.0. most_zeros: behind what it needs; kUnbounded: all ways, for a complement.
  static constexpr uint32_t kMostZeros = 2;
  ExprId NumberLiteral(const Decimal& number, uint32_t most_zeros = kMostZeros);
  ExprId WithPoint();                 // all texts but integers without a point: no number of them is one of draft 4
  ExprId AnyString(Writing writing);  // without quotes
  // The texts that a pattern takes as a whole; it is a literal.
  ExprId Match(const char* pattern);
  // The texts of a pattern's matches, anywhere in the text.
  StatusOr<ExprId> Pattern(const std::string& pattern, Writing writing);

 private:
  ExprId Digits(char first, char last);
  ExprId Whole(uint32_t most);
  ExprId Precise(uint32_t most_whole, uint32_t whole_of_limits, uint32_t fraction_of_limits);
  ExprId PointAnd(ExprId digit, uint32_t most);  // of a fraction, or nothing
  ExprId AtLeast(const Decimal& size, bool exclusive);
  ExprId AtMost(const Decimal& size, bool exclusive);

  ExprId Quoted(ExprId inner, const std::string& quote);

  Expressions& e_;
  const JsonStyle style_;
  ExprId space_ = kEpsilon;
  const ExprId digits_, fraction_;  // any, or none
  std::map<std::pair<std::string, Writing>, ExprId> patterns_, formats_;
  std::map<const char*, ExprId> matches_;
};

}  // namespace gyre::grammar
