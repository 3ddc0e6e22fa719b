// A request to the engine, and the events that answer it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "coordinator/sampler.h"

namespace gyre {

struct Request {
  std::vector<TokenId> prompt;  // >= 1 id
  SamplingParams sampling;
  uint32_t max_new_tokens = 0;  // 0: only the prompt is computed (with prompt_logits)
  std::vector<std::string> stops;
  std::vector<TokenId> stop_ids;  // beside the tokenizer's end-of-generation ids
  bool ignore_end = false;        // end-of-generation ids and stop_ids are tokens like any other
  bool prompt_logits = false;     // a LogitsEvent for each prompt row, in order
  int priority = 0;
  uint64_t tenant = 0;      // who asks: tenants share the rows of a step fairly; 0 = everybody without a name
  uint64_t cache_salt = 0;  // requests share a prefix cache only with those of the same salt
  Deadline deadline = kNoDeadline;
};

enum class FinishReason : uint8_t { kStop, kLength };

struct Usage {
  uint32_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  Duration to_first_token{}, total{};
};

struct TokenEvent {
  TokenId token = 0;
  float probability = 0;
  std::string text;  // may be empty: half a character, or what may become a stop string
};
struct LogitsEvent {
  uint32_t position = 0;
  std::vector<float> logits;  // [vocab]
};
// The three terminal events: exactly one ends every request.
struct Finished {
  FinishReason reason = FinishReason::kStop;
  std::string text;  // what was held back
  Usage usage;
};
struct Failed {
  Status status;
};
struct Cancelled {};

using Event = std::variant<TokenEvent, LogitsEvent, Finished, Failed, Cancelled>;
// Called on the engine's thread; must not block. It may call Submit, Cancel, Hold and Unhold.
using EventSink = std::function<void(SeqId, const Event&)>;

// What a request may ask for, and how many may wait. Submit refuses what goes beyond, with the numbers.
struct RequestLimits {
  uint32_t max_waiting = 1024;  // requests beyond those that may run at once (SchedulerOptions::max_sequences)
  uint32_t max_stops = 16;
  uint32_t max_stop_bytes = 4096;  // of each stop string
  uint32_t max_stop_ids = 1024;
  uint32_t max_logit_biases = 4096;
};

}  // namespace gyre
