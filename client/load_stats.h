// Figures from the records of a load test. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace gyre {

// One request; times in seconds after the start of the test.
struct LoadRecord {
  double due = 0;                 // when it was to start; equal to `sent` in a closed loop
  double sent = 0;                // when it was handed to a connection
  double ended = 0;               // when its answer ended, or failed
  std::vector<double> tokens_at;  // when each event with an answer arrived, rising
  uint32_t asked = 0;             // tokens to generate
  uint32_t prompt_tokens = 0, generated_tokens = 0, cached_tokens = 0;  // by the server's usage
  bool counted = false;                                                 // the server told its usage
  double queue_seconds = -1;                                            // as the server tells; -1 = it does not
  Status status;                                                        // OK: answered to its end

  bool ok() const { return status.ok() && !tokens_at.empty(); }
  double to_first_token() const { return tokens_at.front() - due; }
  double latency() const { return ended - due; }
};

// The smallest value that at least `percent` of all values do not exceed; 0 if there are none. percent: (0, 100].
double Percentile(std::vector<double> values, double percent);

struct Spread {
  size_t count = 0;
  double mean = 0, p50 = 0, p95 = 0, p99 = 0, longest = 0;
};
Spread SpreadOf(const std::vector<double>& values);

// A gap of a request between two of its tokens, or before its first one, in which others progressed.
struct Starvation {
  size_t request = 0;  // index of the record
  double from = 0, to = 0;
  size_t others = 0;  // tokens that other requests got meanwhile
};
// All gaps of more than `bound` seconds in which others got at least `min_others` tokens. By request, then by time.
std::vector<Starvation> FindStarvation(const std::vector<LoadRecord>& records, double bound, size_t min_others);

struct LoadSummary {
  size_t requests = 0, failed = 0;
  size_t short_answers = 0;  // ended well with another number of tokens than was asked for
  size_t uncounted = 0;      // no usage came: their tokens count as events
  double seconds = 0;        // from the first request's due time to the last answer's end
  uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, events = 0;
  double tokens_per_second = 0;                           // generated
  double prompt_tokens_per_second = 0;                    // prompts, the cached part too
  Spread to_first_token, between_tokens, latency, queue;  // seconds; queue: where the server tells
  double first_to_first_token = 0;                        // the first request's
  Spread followers_to_first_token;                        // all but the first
  std::vector<Starvation> starvation;
  double longest_wait = 0;  // seconds of a request without a token, while others got at least `min_others`
};
// Requests that failed count in `failed` only.
LoadSummary Summarize(const std::vector<LoadRecord>& records, double starvation_bound, size_t min_others);

}  // namespace gyre
