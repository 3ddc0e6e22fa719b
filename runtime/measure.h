// Helpers of the benchmarks: medians, and requests whose speed does not depend on their content.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/engine/engine.h"
#include "fmt/core.h"
#include "limits/machine_limits.h"

namespace gyre::bench {

// Returns 0 if there are no values.
inline double Median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

// A prompt of `length` ids and exactly n greedy tokens after it; each `salt` gives another prompt.
inline Request Continue(int length, uint32_t n, int vocab, int salt) {
  Request r;
  for (int i = 0; i < length; ++i)
    r.prompt.push_back(static_cast<TokenId>(
        (uint64_t{static_cast<uint32_t>(i)} * 7919 + uint64_t{static_cast<uint32_t>(salt)} * 104729 + 1) %
        static_cast<uint64_t>(vocab)));
  r.max_new_tokens = n;
  r.sampling.temperature = 0;
  r.ignore_end = true;
  return r;
}

// The one JSON object of a run; `result` is "name": {...}.
inline void PrintResult(const std::string& model, int runs, const std::string& result) {
  fmt::print("{{\"machine\": {}, \"model\": \"{}\", \"runs\": {}, {}}}\n", DescribeMachine(),
             model.substr(model.rfind('/') + 1), runs, result);
}

}  // namespace gyre::bench
