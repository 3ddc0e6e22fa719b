// A text in windows, what a model loses on it, and how two runs over it differ. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/engine/request.h"

namespace gyre {

// A part of a text's ids that is computed as one prompt.
struct TextWindow {
  size_t begin = 0, end = 0;  // of the text's ids; a begin-of-text id may come before them
  size_t scored = 0;          // the text's first id that this window scores: those before it give it context
};
// Each id is scored once: the first window scores all of its ids, each later one the `stride` ids that are new. Without
// a begin-of-text id nothing stands before the text's first id, and it is not scored. REQUIRES: 1 <= stride < window.
// `window`: ids of a prompt, with the begin-of-text id where there is one.
std::vector<TextWindow> CutIntoWindows(size_t ids, uint32_t window, uint32_t stride, bool bos);

// Sums over the scored ids.
class TextLoss {
 public:
  void Add(float logprob);
  uint64_t tokens() const { return tokens_; }
  double nats() const { return sum_; }  // of all ids
  double nats_per_token() const { return tokens_ == 0 ? 0 : sum_ / static_cast<double>(tokens_); }
  double standard_error() const;  // of the mean
  double perplexity() const;
  double bits_per_byte(uint64_t bytes) const;

 private:
  uint64_t tokens_ = 0;
  double sum_ = 0, squares_ = 0;
};

// One run beside a saved one.
class RunComparison {
 public:
  // `saved`: of the same position; `now` names the ids of its `top`. `vocab`: if `top` has them all, the figures are
  // exact. kInvalidArgument: they are of different ids.
  Status Add(const PromptTokenEvent& saved, const PromptTokenEvent& now, int vocab);
  uint64_t tokens() const { return tokens_; }
  double forward() const { return Mean(forward_); }  // KL(saved || now), nats
  double reverse() const { return Mean(reverse_); }
  double jensen_shannon() const { return Mean(jensen_shannon_); }
  double most_forward() const { return most_forward_; }
  double top1_agreement() const { return Mean(static_cast<double>(agree_)); }
  // The mean rank (1 = likeliest) of the saved run's likeliest id now, and the number of positions where it is not
  // among those that this run has; these count as one behind the last.
  double mean_rank() const { return Mean(static_cast<double>(ranks_)); }
  uint64_t beyond() const { return beyond_; }

 private:
  double Mean(double sum) const { return tokens_ == 0 ? 0 : sum / static_cast<double>(tokens_); }

  uint64_t tokens_ = 0, agree_ = 0, ranks_ = 0, beyond_ = 0;
  double forward_ = 0, reverse_ = 0, jensen_shannon_ = 0, most_forward_ = 0;
};

}  // namespace gyre
