// One request as the engine sees it: its tokens, its text stream, and what it waits for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/step.h"
#include "coordinator/request.h"
#include "coordinator/text_stream.h"
#include "model/tokenizer.h"

namespace gyre {

// Not thread-safe: the engine's loop owns it. The scheduler keeps the rest (blocks, positions, state).
class Sequence {
 public:
  Sequence(SeqId id, Request request, EventSink sink, Deadline now);

  struct Accepted {
    std::string text;      // may be shown now
    bool stopped = false;  // an end-of-generation id or a stop string
  };
  // Takes in a drawn token. `tokenizer` may be null: then only stop_ids end the text.
  Accepted Accept(const Draw& draw, const Tokenizer* tokenizer, Deadline now);
  Finished MakeFinished(FinishReason reason, uint32_t cached_tokens, Deadline now);
  // For whoever hands the event over.
  const std::shared_ptr<const EventSink>& sink() const { return sink_; }

  TokenHistory History() const { return {.tokens = tokens, .prompt_length = request.prompt.size()}; }
  uint32_t generated() const { return static_cast<uint32_t>(tokens.size() - request.prompt.size()); }

  const SeqId id;
  const Request request;
  std::vector<TokenId> tokens;     // prompt, then generated
  RowRequest row_request;          // of the row that is sampled next
  uint32_t scored = 0;             // prompt rows whose LogitsEvent was handed over: a replay computes them again
  bool wants_full_logits = false;  // the next sampled row is sent again with mode kFullLogits

 private:
  const std::shared_ptr<const EventSink> sink_;
  TextStream stream_;
  const Deadline submitted_;
  std::optional<Deadline> first_token_;
};

}  // namespace gyre
