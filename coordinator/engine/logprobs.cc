#include "coordinator/engine/logprobs.h"

#include <algorithm>
#include <cmath>

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
  }
  return row;
}

StatusOr<float> RawLogit(const RowAnswer& answer, TokenId id) {
  for (const auto* list : {&answer.biased, &answer.top}) {
    const auto found = std::find_if(list->begin(), list->end(), [id](const TokenLogit& t) { return t.id == id; });
    if (found != list->end()) return found->logit;
  }
  return Internal("the answer for position {} does not name the id {}", answer.position, id);
}

}  // namespace gyre
