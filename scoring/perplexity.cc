#include "scoring/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "scoring/divergence.h"

namespace gyre {

std::vector<TextWindow> CutIntoWindows(size_t ids, uint32_t window, uint32_t stride, bool bos) {
  const size_t most = window - (bos ? 1 : 0);
  std::vector<TextWindow> out;
  size_t scored = bos ? 0 : 1;
  for (size_t begin = 0; scored < ids; begin += stride) {
    const size_t end = std::min(begin + most, ids);
    if (end <= scored) continue;
    out.push_back({.begin = begin, .end = end, .scored = scored});
    scored = end;
  }
  return out;
}

void TextLoss::Add(float logprob) {
  const double loss = -static_cast<double>(logprob);
  ++tokens_;
  sum_ += loss;
  squares_ += loss * loss;
}

double TextLoss::standard_error() const {
  if (tokens_ < 2) return 0;
  const auto n = static_cast<double>(tokens_);
  return std::sqrt(std::max(0.0, squares_ / n - nats_per_token() * nats_per_token()) / (n - 1));
}

double TextLoss::perplexity() const { return std::exp(nats_per_token()); }

double TextLoss::bits_per_byte(uint64_t bytes) const {
  return bytes == 0 ? 0 : sum_ / std::numbers::ln2 / static_cast<double>(bytes);
}

Status RunComparison::Add(const PromptTokenEvent& saved, const PromptTokenEvent& now, int vocab) {
  if (saved.position != now.position || saved.token != now.token) {
    return InvalidArgument("the saved run has the id {} at position {}, this one {} at {}", saved.token, saved.position,
                           now.token, now.position);
  }
  // `named` rises, the saved run's ids are in the order of their chances.
  std::vector<TokenLogprob> before;
  for (const TokenLogprob& t : saved.top) before.push_back(t);
  std::sort(before.begin(), before.end(), [](const TokenLogprob& a, const TokenLogprob& b) { return a.id < b.id; });
  const bool same = std::equal(before.begin(), before.end(), now.named.begin(), now.named.end(),
                               [](const TokenLogprob& a, const TokenLogprob& b) { return a.id == b.id; });
  if (!same || saved.top.empty() || now.top.empty()) {
    return Internal("the score of position {} lacks ids of the saved run", now.position);
  }
  std::vector<float> student;
  for (const TokenLogprob& t : now.named) student.push_back(t.logprob);
  GYRE_ASSIGN_OR_RETURN(const Divergence d, Diverge(before, student, before.size() == static_cast<size_t>(vocab), 0.5));
  ++tokens_;
  forward_ += d.forward;
  reverse_ += d.reverse;
  jensen_shannon_ += d.jensen_shannon;
  most_forward_ = std::max(most_forward_, d.forward);
  const TokenId best = saved.top.front().id;
  const auto rank = static_cast<uint64_t>(
      std::find_if(now.top.begin(), now.top.end(), [best](const TokenLogprob& t) { return t.id == best; }) -
      now.top.begin());
  agree_ += rank == 0 ? 1 : 0;
  beyond_ += rank == now.top.size() ? 1 : 0;
  ranks_ += rank + 1;
  return absl::OkStatus();
}

}  // namespace gyre
