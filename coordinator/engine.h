// The engine: takes requests, keeps the ring full of steps, samples, streams. One thread does it all: Engine::Loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "coordinator/sampler.h"
#include "coordinator/scheduler.h"
#include "model/tokenizer.h"
#include "transport/link.h"

namespace gyre {

struct Request {
  std::vector<TokenId> prompt;  // >= 1 id
  SamplingParams sampling;
  uint32_t max_new_tokens = 0;  // 0: only the prompt is computed (with prompt_logits)
  std::vector<std::string> stops;
  std::vector<TokenId> stop_ids;  // beside the tokenizer's end-of-generation ids
  bool ignore_end = false;        // end-of-generation ids are tokens like any other
  bool prompt_logits = false;     // a LogitsEvent for each prompt row, in order
  int priority = 0;
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
// Called on the engine's thread; must not block. It may call Submit and Cancel.
using EventSink = std::function<void(SeqId, const Event&)>;

// A plan's two hops that end at the coordinator.
struct Ring {
  Epoch epoch;
  uint32_t stages = 1;
  bool prefill_matches_decode = true;  // no stage computes prompt rows otherwise than generated ones
  uint64_t salt = 0;  // of the prefix cache: blocks of another salt are not taken
  std::shared_ptr<Link> to_first, from_last;
};

struct EngineOptions {
  SchedulerOptions scheduler;  // max_in_flight and decode_groups follow the ring
  uint32_t model = 0;
  int vocab = 0;
  uint32_t context = 0;                     // positions of a sequence at most
  const Tokenizer* tokenizer = nullptr;     // null: no text, no end-of-generation ids. Outlives the engine
  uint32_t candidates = 64;                 // K of a sampled row where top-k doesn't say
  bool candidates_path = true;              // off: always the full logits
  Duration step_timeout = Duration::max();  // a step that does not land by then breaks the ring
  uint64_t salt = 0;                        // of the prefix cache: model content and KV type
  // The ring ended or a step did not come back: nothing runs any more until Resume or Lose. On the engine's thread,
  // once a ring; must not block.
  std::function<void(Epoch, const Status&)> on_broken;
};

struct SequenceStats {
  SeqId id{};
  SeqState state = SeqState::kWaiting;
  uint32_t prompt = 0, generated = 0;
};

struct EngineStats {
  SchedulerStats scheduler;
  uint64_t requests = 0, finished = 0, failed = 0, cancelled = 0;
  uint64_t tokens_generated = 0, full_logits_questions = 0, step_errors = 0, discarded_results = 0;
  uint64_t pauses = 0;  // between a drain and the ring that goes on
  Duration last_pause{}, longest_pause{};
  uint64_t held_in_prefill = 0, held_in_partial_block = 0;  // sequences that a pause found so, added up
  std::vector<SequenceStats> sequences;                     // running and waiting ones
};

class Engine {
 public:
  // Without a ring: requests are refused until Resume gives it one.
  static StatusOr<std::unique_ptr<Engine>> Start(EngineOptions options);
  // Running requests end in Cancelled.
  ~Engine();

  // Thread-safe. The sink gets exactly one terminal event, also when this engine stops or the ring breaks.
  // kInvalidArgument (the request is malformed), kResourceExhausted (it can never fit), kUnavailable (the ring is
  // broken): then the sink is never called.
  StatusOr<SeqId> Submit(Request request, EventSink sink);
  // Thread-safe; unknown and ended ids are ignored.
  void Cancel(SeqId seq);
  // A plan change, in calls that are all thread-safe and at once:
  // Nothing is launched any more. When nothing is in flight and no question is open, `drained` is called on the
  // engine's thread with the live blocks; not if the ring breaks before, nor after Resume.
  void Drain(std::function<void(std::vector<BlockId> live)> drained);
  // The KV cache keeps only its first blocks: running sequences begin again, and those that fit no more fail. REQUIRES:
  // drained, or without a ring; Resume follows.
  void Shrink(uint32_t num_blocks);
  // Goes on: over `ring`, or the same as before. Steps that were in flight in a ring that broke are sent again.
  void Resume(std::optional<Ring> ring);
  // The KV cache is gone: every request ends in Failed{why}, and new ones are refused with it until the next Resume.
  void Lose(const Status& why);

  // Thread-safe; a snapshot taken between two passes of the loop.
  EngineStats stats() const;
  // Thread-safe; blocks for a pass of the loop. kInternal with the first contradiction.
  Status CheckIntegrity();

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gyre
