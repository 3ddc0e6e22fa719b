// A drafter guesses the next tokens of texts, on a thread of its own (docs/speculation.md).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "coordinator/engine/sampling_options.h"

namespace gyre {

struct DraftQuestion {
  SeqId seq{};
  // The text from token number `first` on: what came since the last question about it. first is 0 in the first one.
  size_t first = 0;
  std::vector<TokenId> tokens;
  size_t assumed = 0;  // so many at the end are guesses in flight
  size_t prompt = 0;   // tokens of the text that are its prompt
  uint32_t most = 0;   // guesses
  SamplingParams sampling;
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Calls `answer` once, at once or later, on any thread, with up to `most` tokens; without any where it cannot tell.
  // Must not block.
  virtual void Draft(DraftQuestion question, std::function<void(std::vector<TokenId>)> answer) = 0;
  // No question about this text comes any more.
  virtual void End(SeqId seq) = 0;
  // No answer is given after it returns.
  virtual void Stop() = 0;
  // The time of one guess, as it was lately; 0: unknown. Any thread.
  virtual Duration each() const = 0;
  // Whether it answers at present; otherwise it is not asked. Any thread.
  virtual bool ready() const { return true; }
};

}  // namespace gyre
