// Decides what runs in each step. Pure: no clock, no I/O, no text, no sampling. A test is a list of events.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace gyre {

struct SchedulerOptions {
  uint32_t num_blocks = 0;
  uint32_t block_size = 16;
  // Steps in flight at most; at least the number of stages.
  uint32_t max_in_flight = 1;
  // Decoding sequences are dealt into this many groups, one a step, so that every stage has work: the number of
  // stages. A step takes at most ceil(decoding / decode_groups) decode rows, and no more steps than groups with such
  // rows are in flight.
  uint32_t decode_groups = 1;
  uint32_t max_rows = 512;      // rows of a step
  uint32_t chunk = 256;         // prompt rows of one sequence in a step at most; fewer where there are several stages
  uint32_t max_sequences = 64;  // running (admitted) at once
  bool prefix_cache = true;
  bool chunked_prefill = true;      // off: a prompt runs in one step, whatever max_rows says
  bool continuous_batching = true;  // off: sequences are admitted only when none runs
  bool prefill_matches_decode =
      true;  // prompt and generated rows give equal bits, so a block's hash leaves the class out
};

struct SequenceParams {
  std::vector<TokenId> tokens;  // the prompt, >= 1
  uint32_t max_positions = 0;   // prompt and generated together; at most num_blocks * block_size
  bool needs_all_rows = false;  // answers for prompt rows are wanted: nothing is taken from the prefix cache
  int priority = 0;             // higher first; among equals, older first
  uint64_t tenant = 0;          // among equal priorities, tenants share the rows fairly
  uint64_t salt = 0;            // of the prefix cache: model, adapter, KV type
  uint64_t tenant_salt = 0;     // mixed with `salt`: who shares the cache with whom
};

// One sequence's rows in a step.
struct StepItem {
  SeqId seq{};
  uint32_t incarnation = 0;
  RowClass row_class = RowClass::kPrompt;
  uint32_t first_position = 0;
  uint32_t count = 0;
  bool sample_last = false;     // the last row decides the next token
  std::vector<BlockId> blocks;  // the whole table up to the last row
  bool operator==(const StepItem&) const = default;
};

struct StepPlan {
  StepId step{};
  std::vector<StepItem> items;
  bool operator==(const StepPlan&) const = default;
};

enum class SeqState : uint8_t { kWaiting, kPrefill, kDecode };

// The part of a landed step that still counts: nothing of a removed, preempted or failed incarnation.
struct LandedStep {
  std::vector<StepItem> valid;  // items as launched; where sample_last, the caller owes Append or Remove
  std::vector<SeqId> failed;    // they failed twice in a step of their own: the caller must Remove them
};

struct SchedulerStats {
  uint32_t waiting = 0, prefill = 0, decode = 0, held = 0, in_flight = 0;
  uint32_t blocks_available = 0, blocks_cached = 0, num_blocks = 0;
  uint64_t preemptions = 0, cached_positions = 0, computed_rows = 0, replayed_rows = 0, steps = 0;
};

// Not thread-safe: the engine owns it.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // kInvalidArgument: no tokens, or the id is known. kOutOfRange: the prompt and one more position can never
  // fit (with the numbers).
  Status Add(SeqId seq, SequenceParams params);
  // The next step, counted as in flight, or nullopt: nothing to run, or max_in_flight reached.
  std::optional<StepPlan> Next();
  // A step came back, in any state. Steps land in the order they were launched. ok = false: a stage failed it; its
  // sequences' later steps in flight are worthless too and all their rows are scheduled again, once these landed: each
  // sequence in a step of its own until a row of it lands, so that one bad sequence does not fail those beside it.
  LandedStep Land(StepId step, bool ok);
  // The token drawn after the sequence's last landed row. REQUIRES: a sample is owed (see LandedStep).
  // kResourceExhausted: max_positions is reached, the sequence must be removed (finish reason "length").
  Status Append(SeqId seq, TokenId token);
  // The last landed row is scheduled once more, with sample_last: its answer is gone. REQUIRES: a sample is owed.
  void Repeat(SeqId seq);
  // A held sequence keeps its blocks and gets no rows until Unhold; what is in flight still lands. When blocks or
  // places run out it is preempted before any other. Unknown ids are ignored.
  void Hold(SeqId seq);
  void Unhold(SeqId seq);
  // No step in flight will ever land: their rows are scheduled again. `ring_broke`: they may have broken the ring. A
  // sequence that lost its rows so twice, without a landed row in between, runs with nothing else in flight. Returns
  // those that lost them a third time: the caller must Remove them.
  std::vector<SeqId> LoseFlights(bool ring_broke);
  // The ring is another one. What is cached stays: after a change of prefill_matches_decode it was computed the other
  // way. `salt` names everything of the ring that changes a row's bits: sequences that are admitted from now on find
  // only blocks that were computed wholly under the same salt.
  void SetRing(uint32_t max_in_flight, uint32_t decode_groups, bool prefill_matches_decode, uint64_t salt = 0);
  // Keeps only the first `num_blocks` blocks: all sequences are preempted, everything cached is forgotten, and a
  // sequence that wants more positions than there are now ends at them. Returns those whose tokens no longer fit: the
  // caller must Remove them. REQUIRES: nothing is in flight; 1 <= num_blocks <= the present number.
  std::vector<SeqId> Shrink(uint32_t num_blocks);

  // The blocks that are in use or cached, rising: the pages that a layer's new owner needs.
  std::vector<BlockId> LiveBlocks() const;
  // Ends a sequence, whatever its state; its blocks come back when its last step in flight has landed.
  void Remove(SeqId seq);

  // 0 for an unknown sequence. A result of another incarnation is to be discarded.
  uint32_t Incarnation(SeqId seq) const;
  std::optional<SeqState> State(SeqId seq) const;
  // Positions in the KV cache that the sequence's current incarnation has, those of the prefix cache included.
  uint32_t Positions(SeqId seq) const;
  // The rows of the sequence that come from the prefix cache in its current incarnation.
  uint32_t CachedPositions(SeqId seq) const;
  uint32_t in_flight() const;  // steps
  bool idle() const;           // no sequence and nothing in flight
  SchedulerStats stats() const;
  // kInternal with the first contradiction: references, tables, counts, in-flight lists.
  Status CheckIntegrity() const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace gyre
