// How far two distributions of the next token are apart. Pure.
#pragma once

#include <span>

#include "base/status.h"
#include "coordinator/engine/logprobs.h"

namespace gyre {

// In nats. P is the teacher, Q the student.
struct Divergence {
  double forward = 0;         // KL(P || Q)
  double reverse = 0;         // KL(Q || P)
  double jensen_shannon = 0;  // beta KL(P || M) + (1 - beta) KL(Q || M) with M = beta P + (1 - beta) Q
};

// The distributions are known for these ids; all others together count as one more outcome. By the data processing
// inequality each figure is at most that of the whole distributions, and equals it if `whole` vocabulary is named. The
// outcome of the others has at least kLeastRest, as the sums of rounded numbers are not more exact.
inline constexpr double kLeastRest = 1e-9;
// Log-probabilities; both lists have the same ids in the same order. kInvalidArgument: a list is longer than the other,
// the student's has a value that is NaN, or its probabilities are more than 1.001 together.
StatusOr<Divergence> Diverge(std::span<const TokenLogprob> teacher, std::span<const float> student, bool whole,
                             double beta);

}  // namespace gyre
