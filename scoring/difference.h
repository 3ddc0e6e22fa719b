// How far two models' hidden states and distributions are apart, and where they part (docs/diff.md). Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "scoring/divergence.h"

namespace gyre {

// The difference of rows [rows][width] that two models computed.
struct RowsDifference {
  double error = 0;             // root mean square of b - a, relative to that of a; infinite where only b is not zero
  double cosine = 1;            // of all rows as one vector; NaN where one of them is zero
  double largest = 0;           // |b - a| of one element
  size_t row = 0, element = 0;  // its place: the first one
};
// REQUIRES: equal sizes, a multiple of width. A value that is no number counts as an infinite difference, unless both
// are none.
RowsDifference Compare(std::span<const float> a, std::span<const float> b, size_t width);
// The root mean square of b - a over many rows, relative to that of a, or of what was added to `before`.
class RelativeError {
 public:
  // REQUIRES: equal sizes; `before` may be empty instead.
  void Add(std::span<const float> a, std::span<const float> b, std::span<const float> before = {});
  double value() const;

 private:
  double off_ = 0, whole_ = 0;  // sums of squares
};

// The first place whose error is more than kJump times the median of its neighbours', two on either side. nullopt:
// there is none. Errors of at most kRounding are none: so much other orders of summation give. REQUIRES: no NaN.
inline constexpr double kJump = 3, kRounding = 1e-5;
std::optional<size_t> FirstJump(std::span<const double> errors);

// The distributions of one token.
struct TokenDifference {
  Divergence divergence;   // P is A's, Q is B's; beta 0.5
  bool same_best = false;  // ties go to the lower id
  uint32_t rank = 1;       // of A's best id in B, 1 = the best
};
// The difference of two rows of logits [vocab]. kInvalidArgument: sizes differ, or a logit is no number.
StatusOr<TokenDifference> CompareLogits(std::span<const float> a, std::span<const float> b);

}  // namespace gyre
