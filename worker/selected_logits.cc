#include "worker/selected_logits.h"

namespace gyre {

void SelectedLogits::Clear() {
  best_.clear();
  sums_.clear();
  picked_.clear();
  picked_ids_.clear();
  best_at_.clear();
  picked_at_.clear();
  values_ = 0;
}

size_t SelectedLogits::AskBest(const float* logits, uint32_t k, std::span<const TokenId> skip,
                               std::span<const uint64_t> mask) {
  best_.push_back({.logits = logits, .k = k, .skip = skip, .mask = mask});
  best_at_.push_back(values_);
  values_ += k;
  return best_.size() - 1;
}

size_t SelectedLogits::AskLogSumExp(const float* logits, double inv_temperature, std::span<const TokenId> skip,
                                    std::span<const uint64_t> mask) {
  sums_.push_back({.logits = logits, .inv_temperature = inv_temperature, .skip = skip, .mask = mask});
  return sums_.size() - 1;
}

size_t SelectedLogits::AskLogits(const float* logits, std::span<const TokenId> ids, Backend& queue) {
  picked_.push_back({.logits = logits, .ids = queue.Upload(ids)});
  picked_ids_.push_back(ids);
  picked_at_.push_back(values_);
  values_ += ids.size();
  return picked_.size() - 1;
}

void SelectedLogits::Find(size_t vocab, Backend& queue) {
  TokenId* ids = device_ids_.EnsureCapacity(queue.device(), values_);
  float* values = device_values_.EnsureCapacity(queue.device(), values_);
  double* sums = device_sums_.EnsureCapacity(queue.device(), sums_.size());
  for (size_t i = 0; i < best_.size(); ++i) {
    best_[i].ids = ids + best_at_[i];
    best_[i].best = values + best_at_[i];
  }
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i].out = sums + i;
  for (size_t i = 0; i < picked_.size(); ++i) picked_[i].out = values + picked_at_[i];
  if (!best_.empty()) queue.TopK(best_, vocab);
  if (!sums_.empty()) queue.LogSumExp(sums_, vocab);
  if (!picked_.empty()) queue.Pick(picked_);
  found_ids_ = queue.Download(static_cast<const TokenId*>(ids), values_);
  found_values_ = queue.Download(static_cast<const float*>(values), values_);
  found_sums_ = queue.Download(static_cast<const double*>(sums), sums_.size());
}

std::vector<TokenLogit> SelectedLogits::Best(size_t number) const {
  std::vector<TokenLogit> out;
  for (size_t i = best_at_[number]; i < best_at_[number] + best_[number].k && found_ids_[i] >= 0; ++i)
    out.push_back({.id = found_ids_[i], .logit = found_values_[i]});
  return out;
}

std::vector<TokenLogit> SelectedLogits::Logits(size_t number) const {
  std::vector<TokenLogit> out;
  for (size_t i = 0; i < picked_ids_[number].size(); ++i)
    out.push_back({.id = picked_ids_[number][i], .logit = found_values_[picked_at_[number] + i]});
  return out;
}

}  // namespace gyre
