#include "client/load_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gyre {

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  const double n = static_cast<double>(values.size());
  const auto rank = static_cast<size_t>(std::clamp(std::ceil(percent / 100 * n - 1e-9), 1.0, n));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Spread SpreadOf(const std::vector<double>& values) {
  if (values.empty()) return {};
  return {.count = values.size(),
          .mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          .p50 = Percentile(values, 50),
          .p95 = Percentile(values, 95),
          .p99 = Percentile(values, 99),
          .longest = *std::max_element(values.begin(), values.end())};
}

std::vector<Starvation> FindStarvation(const std::vector<LoadRecord>& records, double bound, size_t min_others) {
  std::vector<double> all;
  for (const LoadRecord& r : records) all.insert(all.end(), r.tokens_at.begin(), r.tokens_at.end());
  std::sort(all.begin(), all.end());
  std::vector<Starvation> out;
  for (size_t i = 0; i < records.size(); ++i) {
    const LoadRecord& r = records[i];
    double from = r.sent;
    std::vector<double> ends = r.tokens_at;
    if (ends.empty()) ends.push_back(r.ended);  // it never got one
    for (const double to : ends) {
      if (to - from > bound) {
        // The request's own tokens are at the ends of the gap, so all tokens strictly inside it belong to others.
        const auto others =
            std::lower_bound(all.begin(), all.end(), to) - std::upper_bound(all.begin(), all.end(), from);
        if (others >= static_cast<std::ptrdiff_t>(min_others)) {
          out.push_back({.request = i, .from = from, .to = to, .others = static_cast<size_t>(others)});
        }
      }
      from = to;
    }
  }
  return out;
}

LoadSummary Summarize(const std::vector<LoadRecord>& records, double bound, size_t min_others) {
  LoadSummary out{.requests = records.size()};
  std::vector<double> first, between, latency, queue, followers;
  double begin = 0, end = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const LoadRecord& r = records[i];
    begin = i == 0 ? r.due : std::min(begin, r.due);
    end = std::max(end, r.ended);
    if (!r.ok()) {
      ++out.failed;
      continue;
    }
    const uint64_t generated = r.counted ? r.generated_tokens : r.tokens_at.size();
    out.uncounted += r.counted ? 0 : 1;
    out.short_answers += r.counted && r.generated_tokens != r.asked ? 1 : 0;
    out.prompt_tokens += r.prompt_tokens;
    out.cached_tokens += r.cached_tokens;
    out.generated_tokens += generated;
    out.events += r.tokens_at.size();
    first.push_back(r.to_first_token());
    if (i == 0) out.first_to_first_token = r.to_first_token();
    if (i > 0) followers.push_back(r.to_first_token());
    latency.push_back(r.latency());
    if (r.queue_seconds >= 0) queue.push_back(r.queue_seconds);
    for (size_t t = 1; t < r.tokens_at.size(); ++t) between.push_back(r.tokens_at[t] - r.tokens_at[t - 1]);
  }
  out.seconds = end - begin;
  if (out.seconds > 0) {
    out.tokens_per_second = static_cast<double>(out.generated_tokens) / out.seconds;
    out.prompt_tokens_per_second = static_cast<double>(out.prompt_tokens) / out.seconds;
  }
  out.to_first_token = SpreadOf(first);
  out.between_tokens = SpreadOf(between);
  out.latency = SpreadOf(latency);
  out.queue = SpreadOf(queue);
  out.followers_to_first_token = SpreadOf(followers);
  for (const Starvation& gap : FindStarvation(records, 0, min_others)) {
    out.longest_wait = std::max(out.longest_wait, gap.to - gap.from);
    if (gap.to - gap.from > bound) out.starvation.push_back(gap);
  }
  return out;
}

}  // namespace gyre
