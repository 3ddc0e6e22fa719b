// Log-probabilities of a row: the log-softmax of its raw logits. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/step.h"

namespace gyre {

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};

// The last stage's figures of a whole row. They have the same bits whether the row is sampled from candidates or from
// all logits: a stage computes them in the same way for both.
class RowLogprobs {
 public:
  RowLogprobs() = default;
  // `answer`: to a request for the `n` best. kInternal: it is not, or a logit is NaN.
  static StatusOr<RowLogprobs> Read(const RowAnswer& answer, uint32_t n, int vocab);
  // The log-probability of an id with this raw logit.
  float Of(float logit) const { return static_cast<float>(static_cast<double>(logit) - log_sum_exp_); }
  // The n best ids, best first; fewer if the vocabulary has fewer.
  const std::vector<TokenLogprob>& top() const { return top_; }
  // The logarithm of the probability of all other ids; -inf if that is too small to be told from 0.
  double rest() const { return rest_; }

 private:
  double log_sum_exp_ = 0, rest_ = 0;
  std::vector<TokenLogprob> top_;
};

// The raw logit of an id that the answer names. kInternal: it does not name it.
StatusOr<float> RawLogit(const RowAnswer& answer, TokenId id);

}  // namespace gyre
