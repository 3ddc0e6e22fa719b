#include "coordinator/engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gyre {

StatusOr<RowLogprobs> RowLogprobs::Read(const RowAnswer& answer, uint32_t n, int vocab) {
  if (!std::isfinite(answer.log_sum_exp_all)) {
    return Internal("no log-probabilities at position {}: the log-sum-exp of its logits is {}", answer.position,
                    answer.log_sum_exp_all);
  }
  const size_t expected = std::min<size_t>(n, static_cast<size_t>(vocab));
  if (answer.best.size() != expected) {
    return Internal("the answer for position {} has the {} best ids, asked were {}", answer.position,
                    answer.best.size(), expected);
  }
  RowLogprobs row;
  row.log_sum_exp_ = answer.log_sum_exp_all;
  double mass = 0;
  for (size_t i = 0; i < answer.best.size(); ++i) {
    const TokenLogit& b = answer.best[i];
    const TokenLogit* before = i > 0 ? &answer.best[i - 1] : nullptr;
    const bool in_order =
        before == nullptr || before->logit > b.logit || (before->logit == b.logit && before->id < b.id);
    if (b.id < 0 || b.id >= vocab || std::isnan(b.logit) || !in_order) {
      return Internal("the answer for position {} has the id {} among the best, where it can not stand",
                      answer.position, b.id);
    }
    row.top_.push_back({.id = b.id, .logprob = row.Of(b.logit)});
    mass += std::exp(static_cast<double>(b.logit) - row.log_sum_exp_);
  }
  row.rest_ = mass < 1 ? std::log1p(-mass) : -std::numeric_limits<double>::infinity();
  return row;
}

StatusOr<float> RawLogit(const RowAnswer& answer, TokenId id) {
  const auto before = [](const TokenLogit& t, TokenId i) { return t.id < i; };
  const auto biased = std::lower_bound(answer.biased.begin(), answer.biased.end(), id, before);  // they rise
  if (biased != answer.biased.end() && biased->id == id) return biased->logit;
  for (const TokenLogit& t : answer.top) {
    if (t.id == id) return t.logit;
  }
  return Internal("the answer for position {} does not name the id {}", answer.position, id);
}

}  // namespace gyre
