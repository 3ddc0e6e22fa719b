// One request as the engine sees it: its tokens, its text stream, and what it waits for.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/step.h"
#include "coordinator/engine/context_window.h"
#include "coordinator/engine/request.h"
#include "coordinator/engine/sampler.h"
#include "coordinator/engine/scheduler_types.h"
#include "coordinator/engine/speculation.h"
#include "coordinator/engine/text_stream.h"
#include "model/tokenizer.h"
#include "model/tool_reader.h"

namespace gyre {

// Not thread-safe: the engine's loop owns it. The scheduler keeps the rest (blocks, positions, state).
class Sequence {
 public:
  Sequence(SeqId id, Request request, EventSink sink, Deadline now);

  struct Accepted {
    std::string text;      // may be shown now
    bool stopped = false;  // by an end-of-generation id, a stop id, a stop string, or behind the one call
  };
  // Takes in a drawn token. `tokenizer` may be null: then only stop_ids end the text.
  Accepted Accept(const Draw& draw, const Tokenizer* tokenizer, Deadline now);
  Finished MakeFinished(FinishReason reason, Deadline now);
  // For whoever hands the event over.
  const std::shared_ptr<const EventSink>& sink() const { return sink_; }

  TokenHistory History() const { return {.tokens = tokens, .prompt_length = request.prompt.size()}; }
  // Names it in the log: Request::id, else its number.
  std::string log_id() const;
  Deadline submitted() const { return submitted_; }
  const std::optional<Deadline>& last_token() const { return last_token_; }
  uint32_t generated() const { return static_cast<uint32_t>(tokens.size() - request.prompt.size()); }

  const SeqId id;
  const Request request;
  std::vector<TokenId> tokens;  // prompt, then generated
  ContextWindow window;         // those of them that are in the context
  // The requests of the row that is sampled next and of the rows of drafts behind it; the first has the mask itself.
  std::deque<RowRequest> row_requests;
  // The answers of rows of drafts behind one whose full logits were asked for.
  std::deque<RowAnswer> behind;
  std::optional<RequestDrafts> drafts;  // where it may have any
  // The masks of the ids that may come behind the last known token and behind each proposed draft; null: any id.
  std::vector<std::shared_ptr<const grammar::TokenMask>> masks;
  // Request::sampling without the ids that end a text; made when the first token needs it.
  std::optional<SamplingParams> endless_sampling;
  // The prompt's rows whose answers the request wants, and the first of them that has not been used. A replay computes
  // earlier ones again; their answers are not used.
  RowAnswers answers;
  uint32_t scored = 0;
  // Where its first rows began: what was before them came from the prefix cache. A replay finds rows of its own there.
  std::optional<uint32_t> cached;
  Deadline began{};                // when these were launched
  uint32_t told = 0;               // rows of the prompt in PromptProgress events
  bool wants_full_logits = false;  // the next sampled row is sent again with mode kFullLogits
  RowLogprobs logprobs;            // of the row that is sampled, with Request::logprobs
  uint32_t drafted = 0, accepted_drafts = 0;
  std::vector<double> pooled;  // Pooling::kMean: the sum of the rows' hidden states before `scored`, in their order

 private:
  // Whether the one call ends with this token and its text.
  bool EndsCall(TokenId token, const std::string& text);

  const std::shared_ptr<const EventSink> sink_;
  TextStream stream_;
  std::optional<ToolReader> calls_;  // with Request::one_call
  const Deadline submitted_;
  std::optional<Deadline> first_token_, last_token_;
  std::string stop_;  // as in Finished
  TokenId stop_id_ = -1;
};

}  // namespace gyre
