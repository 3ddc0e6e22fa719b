// Questions of a benchmark with what is right, and how answers count, as evaluation harnesses define it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gyre {

// One line of a benchmark's file; docs/scoring.md has the fields.
struct BenchmarkItem {
  std::string task;  // figures are made for each; "" = one without a name
  std::string context;
  // Multiple choice; none: a free answer.
  std::vector<std::string> choices;
  size_t right = 0;
  std::string delimiter = " ";  // between context and choice
  // A free answer.
  std::vector<std::string> answers;  // any of them is right
  std::string regex;                 // its first match is the answer; "" = the whole text
  bool ignore_case = false;
  uint32_t max_tokens = 128;
  std::vector<std::string> stop;
};
// kInvalidArgument: it is no JSON object, or a field is wrong, unknown or missing.
StatusOr<BenchmarkItem> ReadBenchmarkItem(std::string_view line);

// The log-probability of a choice behind its context.
struct ChoiceScore {
  double sum = 0;
  uint32_t tokens = 0;
};
// The choices that the measures take: the first with the largest value.
struct Picks {
  size_t sum = 0;         // harnesses: acc
  size_t mean = 0;        // by token
  size_t normalized = 0;  // by character of the choice; harnesses: acc_norm
};
// REQUIRES: a score for each choice, at least one.
Picks PickChoices(const BenchmarkItem& item, const std::vector<ChoiceScore>& scores);

// What counts of a free answer: without white space around it, by the regex its first match, in lower case with
// ignore_case (ASCII). nullopt: the regex does not match. kInvalidArgument: it is no regular expression.
StatusOr<std::optional<std::string>> ExtractAnswer(const BenchmarkItem& item, std::string_view text);
// Whether it is one of the answers, which are read in the same way but for the regex.
bool IsRight(const BenchmarkItem& item, const std::optional<std::string>& answer);

// The share of right answers and its standard error.
struct Accuracy {
  uint64_t items = 0, right = 0;
  double share() const { return items == 0 ? 0 : static_cast<double>(right) / static_cast<double>(items); }
  double standard_error() const;
};

}  // namespace gyre
