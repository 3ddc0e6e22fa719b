// The requests of a load test: their lengths and their times. Pure; the same options give the same requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"

namespace gyre {

struct LoadRequest {
  Duration due{};                     // after the start; only in an open loop
  uint32_t prompt = 1, generate = 1;  // tokens
  uint32_t shared = 0;                // the prompt's beginning, which all requests that have one share
  uint64_t salt = 0;                  // another salt, another prompt
  std::string text;                   // the prompt itself, from a trace; "" = made of the numbers above
};

struct LoadPlan {
  // Open loop: each request starts when it is due, however many are under way. Closed loop: as soon as one ends the
  // next one starts, `at_once` of them at any time.
  bool open_loop = false;
  uint32_t at_once = 1;  // in an open loop: at most that many; others wait, and the wait counts
  bool lead = false;     // the first one runs alone up to its first token
  std::vector<LoadRequest> requests;
};

struct LoadOptions {
  std::string workload = "mixed";  // single, mixed or prefix
  uint32_t requests = 0;           // 0 = as many as run at once; of single: 1
  uint32_t at_once = 0;            // 0 = the workload's own: 1, 16, 16
  double rate = 0;                 // Poisson arrivals a second; 0 = a closed loop
  double scale = 1;                // multiplies all lengths
  uint64_t seed = 1;
  bool lead = false;
};

// kInvalidArgument: no such workload.
StatusOr<LoadPlan> PlanLoad(const LoadOptions& options);

// One request per line, as {"at": seconds, "prompt_tokens": N, "max_tokens": N, "prompt": "text"}; "timestamp" in
// milliseconds, "input_length" and "output_length" are understood too. Lines need not be in order. `rate`, if given,
// sets the mean arrivals a second by stretching time. kInvalidArgument: a line is wrong; the message says which one.
StatusOr<LoadPlan> PlanTrace(const std::string& lines, const LoadOptions& options);

// The request's prompt as ids, of ordinary tokens: those in the middle of the vocabulary.
std::vector<TokenId> PromptOfIds(const LoadRequest& request, uint64_t seed, int vocab);
// The request's prompt as English words with single spaces, `words` of them; the first `shared_words` are common.
std::string PromptOfWords(const LoadRequest& request, uint64_t seed, uint32_t words, uint32_t shared_words);

}  // namespace gyre
