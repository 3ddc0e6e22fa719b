// Oracles for the sampler's tests: the last stage's answer, and the distribution, both computed in the
// straightforward way.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "coordinator/engine/sampler.h"

namespace gyre::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Parameters that draw from the whole distribution.
inline SamplingParams Plain() {
  return {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .logit_bias = {}, .seed = 7};
}

inline bool OracleAllows(std::span<const uint64_t> mask, TokenId id) {
  return mask.empty() || (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

// The last stage's answer to a request for this row.
inline RowAnswer OracleAnswer(const RowRequest& request, std::span<const float> logits, uint32_t position) {
  RowAnswer answer;
  answer.position = position;
  answer.mode = request.mode;
  for (TokenId id : request.biased) answer.biased.push_back({id, logits[id]});
  std::vector<TokenLogit> others;
  for (TokenId id = 0; id < static_cast<TokenId>(logits.size()); ++id) {
    const bool biased = std::find(request.biased.begin(), request.biased.end(), id) != request.biased.end();
    if (!biased && OracleAllows(request.mask, id)) others.push_back({id, logits[id]});
  }
  std::stable_sort(others.begin(), others.end(), [](const TokenLogit& a, const TokenLogit& b) {
    return std::isnan(b.logit) ? !std::isnan(a.logit) : a.logit > b.logit;  // NaN ranks below everything
  });
  const auto log_sum_exp = [&](double inverse) {
    if (others.empty()) return -std::numeric_limits<double>::infinity();
    double best = -std::numeric_limits<double>::infinity();
    for (const TokenLogit& other : others) best = std::max(best, other.logit * inverse);
    double sum = 0;
    for (const TokenLogit& other : others) sum += std::exp(other.logit * inverse - best);
    return best + std::log(sum);
  };
  if (request.temperature > 0) answer.log_sum_exp_t = log_sum_exp(1.0 / request.temperature);
  others.resize(std::min<size_t>(others.size(), request.mode == RowMode::kArgmax ? 1 : request.k));
  answer.top = others;
  return answer;
}

// The probability of every id that remains after all filters. REQUIRES: temperature > 0, finite logits.
inline std::map<TokenId, double> OracleDistribution(const SamplingParams& params, const TokenHistory& history,
                                                    std::span<const uint64_t> mask, std::span<const float> logits) {
  struct Entry {
    TokenId id;
    float logit;
    long double p;
  };
  std::vector<Entry> entries;
  const size_t reach = params.penalty_last_n < 0 ? history.tokens.size() : static_cast<size_t>(params.penalty_last_n);
  for (TokenId id = 0; id < static_cast<TokenId>(logits.size()); ++id) {
    double logit = logits[id];
    for (const auto& [biased, bias] : params.logit_bias) logit += biased == id ? bias : 0;
    const auto tokens = history.tokens;
    const auto recent = tokens.last(std::min(reach, tokens.size()));
    if (std::find(recent.begin(), recent.end(), id) != recent.end()) {
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    const auto generated = tokens.subspan(history.prompt_length);
    const auto count = std::count(generated.begin(), generated.end(), id);
    logit -= static_cast<double>(params.frequency_penalty) * static_cast<double>(count);
    if (count > 0) logit -= params.presence_penalty;
    const bool banned = std::isinf(logit) || !OracleAllows(mask, id);
    if (!banned) entries.push_back({id, static_cast<float>(logit), 0});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.logit > b.logit; });
  if (params.top_k > 0 && entries.size() > static_cast<size_t>(params.top_k)) entries.resize(params.top_k);
  const auto normalize = [&] {
    long double sum = 0;
    for (const Entry& e : entries) sum += e.p;
    for (Entry& e : entries) e.p /= sum;
  };
  for (Entry& e : entries) e.p = std::exp((static_cast<long double>(e.logit) - entries[0].logit) / params.temperature);
  normalize();
  if (params.top_p < 1) {
    long double sum = 0;
    size_t kept = 0;
    while (kept < entries.size() && sum < params.top_p) sum += entries[kept++].p;
    entries.resize(kept);
  }
  std::erase_if(entries, [&, best = entries[0].p](const Entry& e) { return e.p < params.min_p * best; });
  normalize();
  std::map<TokenId, double> distribution;
  for (const Entry& e : entries) distribution[e.id] = static_cast<double>(e.p);
  return distribution;
}

}  // namespace gyre::testing
