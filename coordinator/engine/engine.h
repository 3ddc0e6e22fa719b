// The engine: takes requests, keeps the ring full of steps, samples, streams. One thread does it all:
// Engine::Impl::Loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/ids.h"
#include "base/member_load.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "coordinator/engine/cache_index.h"
#include "coordinator/engine/drafter.h"
#include "coordinator/engine/request.h"
#include "coordinator/engine/scheduler.h"
#include "model/tokenizer.h"
#include "transport/link.h"

namespace gyre {

// A plan's two hops that end at the coordinator.
struct Ring {
  Epoch epoch;
  uint32_t stages = 1;
  bool prefill_matches_decode = true;  // no stage computes prompt rows otherwise than generated ones
  // Names what changes a row's bits from one plan to the next: the boundaries with activations that are rounded, the
  // stages' instruction sets. In another cache namespace new requests find nothing in the prefix cache that the ring
  // before computed; running ones keep their rows.
  uint64_t cache_namespace = 0;
  // After a loss: this ring still has the KV cache that Engine::Restore kept. False: the cache is forgotten.
  bool restores = false;
  // Units of it that were not restored.
  std::vector<BlockId> missing;
  // Members have had steps up to this one: the ring's have higher numbers.
  uint64_t step_floor = 0;
  // A member of this process has layers: what kills it kills the coordinator. Requests in quarantine fail
  // before they run here.
  bool own_member = false;
  std::shared_ptr<Link> to_first, from_last;
};

class Tracer;

struct EngineOptions {
  SchedulerOptions scheduler;    // max_in_flight and decode_groups follow the ring
  uint32_t steps_in_flight = 0;  // at most; 0: found from the ring's times
  RequestLimits limits;
  uint32_t model = 0;
  int vocab = 0;
  int dim = 0;                           // width of a hidden state; 0: embeddings are refused
  bool encoder = false;                  // requests are for embeddings, and a text's rows depend on all of its tokens
  uint32_t context = 0;                  // positions of a sequence at most
  const Tokenizer* tokenizer = nullptr;  // null: no text, no end-of-generation ids. Outlives the engine
  Speculation speculation = Speculation::kAuto;
  std::shared_ptr<Drafter> drafter;  // guesses where the text itself does not repeat; may be null
  uint32_t draft_tokens = 8;         // its guesses in a step at most, or those of the layer for drafts
  bool mtp = false;                  // the last stage has the model's layer for drafts
  uint32_t candidates = 64;          // K of a sampled row where top-k doesn't say
  bool candidates_path = true;       // off: always the full logits
  // A ring that owes results and gives none for so long is broken. A slow machine may take minutes for one step.
  Duration step_timeout = std::chrono::minutes(10);
  uint64_t salt = 0;      // of the prefix cache: model content and KV type
  uint32_t adapters = 0;  // that the model has, and the one of requests that name none; 0: none
  uint32_t adapter = 0;
  // Set: a sequence whose context is full goes on without its older tokens. The value is the number of its first tokens
  // that stay, at most half of the context; -1: the whole prompt. Not set: it ends with "length".
  std::optional<int32_t> context_keep;
  // The ring ended or a step did not come back: nothing runs any more until Resume or Lose. On the engine's thread,
  // once a ring; must not block. Empty: all requests fail.
  std::function<void(Epoch, const Status&)> on_broken;
  // The index that the process before kept. The first Restore takes it over, and what members lack of it is forgotten.
  CacheIndex cache;
  // Changes of the index, on the engine's thread, soon after them; must not block. Empty: it is not kept.
  std::function<void(CacheNews)> on_cache;
  uint64_t generation = 1;   // of an index that begins here, above all before
  Tracer* tracer = nullptr;  // gets steps and requests as they go; outlives the engine. null: nothing is recorded
  NowFn now;                 // for deadlines, timeouts and usage; thread-safe. Empty = Clock::now
};

struct SequenceStats {
  SeqId id{};
  SeqState state = SeqState::kWaiting;
  uint32_t prompt = 0, generated = 0;
};

struct EngineStats {
  SchedulerStats scheduler;
  uint64_t requests = 0, finished = 0, failed = 0, cancelled = 0;
  uint64_t tokens_generated = 0, full_logits_requests = 0, step_errors = 0, discarded_results = 0;
  uint64_t step_bytes_sent = 0;                      // frames of steps, to the first stage
  uint64_t mask_bytes_sent = 0;                      // frames of masks, to the first stage
  uint64_t drafted_tokens = 0, accepted_drafts = 0;  // guesses whose rows were sent; those that were drawn
  uint64_t forced_tokens = 0;   // generated ones that a grammar left no choice about, and that took no answer
  LatencyHistogram mask_time;   // of masks that were not known when a text needed them, until they were
  uint64_t context_shifts = 0;  // full contexts that lost their older tokens (EngineOptions::context_keep)
  // Tokens of all prompts, and rows of prompts that were sent into the ring: those of replays too, not those that the
  // prefix cache had.
  uint64_t prompt_tokens = 0, prompt_rows = 0;
  // From Submit to the first token, from each token to the next, and from Submit to Finished.
  LatencyHistogram to_first_token, between_tokens, request_time;
  uint64_t pauses = 0;           // from a drain, or the last result of a ring that broke, to the ring that goes on
  uint64_t poison_requests = 0;  // requests that were taken to be the cause of three lost rings
  uint64_t rings_lost = 0;       // with a member, so that everything was computed again
  Duration last_wait{}, longest_wait{};  // from the last sign of the lost ring to the next ring
  Duration last_pause{}, longest_pause{};
  // Sequences that a pause found in the middle of their prompt, or of a block, added up over all pauses.
  uint64_t held_in_prefill = 0, held_in_partial_block = 0;
  // Checks of the KV bookkeeping after the last request ended, and those that found a fault. What leaked was given back
  // (SchedulerStats::leaked_blocks).
  uint64_t integrity_checks = 0, integrity_faults = 0;
  std::vector<SequenceStats> sequences;  // running and waiting ones; up to 50 ms old
};

class Engine {
 public:
  // Without a ring: requests are refused until Resume gives it one.
  static StatusOr<std::unique_ptr<Engine>> Start(EngineOptions options);
  // Running requests end in Cancelled.
  ~Engine();

  // Thread-safe. The sink gets exactly one terminal event, also when this engine stops or the ring breaks.
  // kInvalidArgument (the request is malformed or passes EngineOptions::limits), kOutOfRange (it can never fit),
  // kResourceExhausted (the queue is full), kUnavailable (no ring): then the sink is never called.
  StatusOr<SeqId> Submit(Request request, EventSink sink);
  // Thread-safe; unknown and ended ids are ignored.
  void Cancel(SeqId seq);
  // For a sink whose reader is slow. A held request keeps its KV blocks, unless others need them, and computes nothing
  // until Unhold; a few more events may still come. Thread-safe and at once; unknown and ended ids are ignored.
  void Hold(SeqId seq);
  void Unhold(SeqId seq);
  // A plan change, in calls that are all thread-safe and at once:
  // Nothing is launched any more. When nothing is in flight and no question is open, `drained` is called on the
  // engine's thread with the live blocks; not if the ring breaks before, nor after Resume.
  void Drain(std::function<void(std::vector<BlockId> live)> drained);
  // The KV cache keeps only its first blocks: running sequences begin again, and those that fit no more fail. `whole`:
  // it has so many blocks from now on as its whole size, which may be larger. REQUIRES: drained, or without a ring;
  // Resume with a ring follows.
  void Shrink(uint32_t num_blocks, bool whole = false);
  // The progress of the ring that it uses. Any thread.
  RingProgress progress() const;
  // The ring of this plan is broken, as somebody else has seen: on_broken follows.
  void BreakRing(Epoch epoch, const Status& why);
  // The KV cache gets more blocks, whatever runs meanwhile. REQUIRES: num_blocks >= the present number.
  void Grow(uint32_t num_blocks);
  // Goes on over the same ring as before, or over `ring`: then whatever was in flight in the old one is sent again.
  void Resume(std::optional<Ring> ring);
  // A member of the ring is lost, and with it the ring and the KV cache. Requests wait, new ones too, and get a Waiting
  // event with `why`; after the next Resume with a ring they are computed again and go on. Called again, it only tells
  // another `why`. `crashed`: what was in flight may be the cause; a request that is shown to be it fails
  // (Scheduler::LoseFlights). `replicated`: the cache may be restored by the next ring (docs/faults.md).
  // `since`: when the ring gave its last sign, for the statistics; nullopt: now.
  void Await(const Status& why, bool crashed, bool replicated = false, std::optional<Deadline> since = std::nullopt);
  // While requests wait: the cache keeps what no step after this one has written, or after the lost ring's beginning
  // where that is later (nullopt: nothing), and `restored` is called on the engine's thread with the units that are
  // left, numbered as in Drain.
  void Restore(std::optional<uint64_t> step, std::function<void(UnitList live)> restored);
  // There is no ring and none to wait for: every request ends in Failed{why}, and new ones are refused with it until
  // the next Resume.
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
