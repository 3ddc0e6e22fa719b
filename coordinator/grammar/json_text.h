// The texts of JSON's values under limits, as expressions.
#pragma once

#include <map>
#include <string>

#include "base/status.h"
#include "coordinator/grammar/code_points.h"
#include "coordinator/grammar/expressions.h"
#include "coordinator/grammar/schema_alternatives.h"

namespace gyre::grammar {

// Not thread-safe.
class JsonText {
 public:
  // compact: no white space at all; else any, but at most 16 characters in a row with 2 line feeds.
  JsonText(Expressions* e, bool compact);

  ExprId space() const { return space_; }
  // Errors: a pattern's or a format's; a bound.
  StatusOr<ExprId> Number(const NumberLimits& limits);
  // Without quotes.
  StatusOr<ExprId> String(const StringLimits& limits, Writing writing);
  StatusOr<bool> Matches(const StringLimits::Match& match, std::string_view text);
  // A number in its ways of writing: 1, 1.0. most_zeros: behind what it needs; kUnbounded: all ways, for a complement.
  static constexpr uint32_t kMostZeros = 2;
  ExprId NumberLiteral(const Decimal& number, uint32_t most_zeros = kMostZeros);
  ExprId AnyString(Writing writing);  // without quotes
  ExprId Quoted(ExprId inner);
  // The texts of a pattern's matches, anywhere in the text.
  StatusOr<ExprId> Pattern(const std::string& pattern, Writing writing);

 private:
  ExprId Match(const char* pattern);
  ExprId Digits(char first, char last);
  ExprId Whole(uint32_t most);
  ExprId Precise(uint32_t most_whole, uint32_t fraction_of_limits);
  ExprId PointAnd(ExprId digit, uint32_t most);  // of a fraction, or nothing
  ExprId AtLeast(const Decimal& size, bool exclusive);
  ExprId AtMost(const Decimal& size, bool exclusive);

  Expressions& e_;
  ExprId space_ = kEpsilon;
  const ExprId digits_, fraction_;  // any, or none
  std::map<std::pair<std::string, Writing>, ExprId> patterns_, formats_;
  std::map<const char*, ExprId> matches_;
};

}  // namespace gyre::grammar
