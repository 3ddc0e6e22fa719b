// Lookups of a stage in rows of logits: best ids, log-sum-exps and single logits. First all requests are collected,
// then the device computes, then the host reads the results.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/step.h"
#include "kernels/ops.h"

namespace gyre {

// Not thread-safe.
class SelectedLogits {
 public:
  // `logits` and what the others point to lie on the device; what is asked for is known by the number that comes back.
  void Clear();
  size_t AskBest(const float* logits, uint32_t k, std::span<const TokenId> skip, std::span<const uint64_t> mask);
  size_t AskLogSumExp(const float* logits, double inv_temperature, std::span<const TokenId> skip,
                      std::span<const uint64_t> mask);
  // The logits of ids, which lie on the host.
  size_t AskLogits(const float* logits, std::span<const TokenId> ids, Backend& queue);
  // Calls the ops. After queue.Finish the answers are there, until Clear.
  void Find(size_t vocab, Backend& queue);

  std::vector<TokenLogit> Best(size_t number) const;
  double LogSumExp(size_t number) const { return found_sums_[number]; }
  std::vector<TokenLogit> Logits(size_t number) const;

 private:
  std::vector<TopKRow> best_;
  std::vector<LogSumExpRow> sums_;
  std::vector<PickRow> picked_;
  std::vector<std::span<const TokenId>> picked_ids_;  // on the host
  std::vector<size_t> best_at_, picked_at_;           // in the values
  size_t values_ = 0;
  DeviceBuffer<TokenId> device_ids_;
  DeviceBuffer<float> device_values_;
  DeviceBuffer<double> device_sums_;
  std::span<const TokenId> found_ids_;
  std::span<const float> found_values_;
  std::span<const double> found_sums_;
};

}  // namespace gyre
