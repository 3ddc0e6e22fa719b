// The scheduler's inputs and outputs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/ids.h"
#include "base/memory_counts.h"
#include "base/named_values.h"
#include "base/step.h"

namespace gyre {

// The order in which sequences get rows of a step. Each policy keeps the promises of docs/scheduler.md.
enum class SchedulerPolicy : uint8_t {
  kFcfs,              // one queue of prompts and decoding sequences, by rank: priority, then arrival
  kPrefillFirst,      // prompts first: the first token comes soon, the others later
  kDecodeRoundRobin,  // decoding sequences first, in turn; prompts get what is left
};
inline constexpr std::array<std::string_view, 3> kPolicyNames = {"fcfs", "prefill_first", "decode_round_robin"};
constexpr std::optional<SchedulerPolicy> ParsePolicy(std::string_view name) {
  return ValueOfName<SchedulerPolicy>(kPolicyNames, name);
}

struct SchedulerOptions {
  // The units of each kind (docs/memory.md). Each running sequence has a slot, where the model has any; of the blocks
  // of layers with a window there are at least what a window touches, or as many as pages.
  MemoryCounts memory;
  uint32_t block_size = 16;
  uint32_t window = 0;             // positions that rows of layers with a window read; 0: there are none
  uint32_t snapshot_every = 1024;  // positions from one snapshot of a sequence to the next, in whole blocks
  // Steps in flight at most; at least the number of stages.
  uint32_t max_in_flight = 1;
  // Decoding sequences are dealt into this many groups, one a step, so that every stage has work: the number of
  // stages. A step takes at most ceil(decoding / decode_groups) decode rows, and no more steps than groups with such
  // rows are in flight.
  uint32_t decode_groups = 1;
  // Both numbers are found from what the stages say of steps (StepsInFlight), beginning with these.
  bool adapts_in_flight = false;
  uint32_t max_rows = 512;      // rows of a step
  uint32_t chunk = 256;         // prompt rows of one sequence in a step at most; fewer where there are several stages
  uint32_t max_sequences = 64;  // running (admitted) at once
  SchedulerPolicy policy = SchedulerPolicy::kFcfs;
  // Prompt rows of a step at most while sequences decode. 0: found from the times of steps (StepBudget), and none with
  // kPrefillFirst.
  uint32_t step_tokens = 0;
  // Not 0: each sequence gets blocks for this many positions (all that there are, if fewer) when it is admitted.
  uint32_t reserve_positions = 0;
  uint32_t leaks_for_test = 0;         // blocks that are taken and forgotten with the first sequence
  uint32_t double_frees_for_test = 0;  // blocks that are given back twice
  bool prefix_cache = true;
  bool chunked_prefill = true;      // off: a prompt runs in one step, whatever max_rows says
  bool continuous_batching = true;  // off: sequences are admitted only when none runs
  bool prefill_matches_decode =
      true;                       // prompt and generated rows give equal bits, so a block's hash leaves the class out
  bool takes_all_drafts = false;  // whatever they cost (tests, measurements); off: as many as pay (DraftDepth)
  // Bytes of answers for prompts' rows (SequenceParams::answers) on their way at most: of all sequences, which is also
  // the most that one step's answer has of them, and of one. A row that is larger goes when nothing else is on its way.
  // A prompt in one step (chunked_prefill off) is not cut.
  uint64_t answer_bytes = uint64_t{256} << 20;
  uint64_t sequence_answer_bytes = uint64_t{16} << 20;
};

// The rows of a prompt whose answers are wanted. Nothing from the first of them on is taken from the prefix cache.
struct RowAnswers {
  uint32_t first = UINT32_MAX, end = UINT32_MAX;  // positions
  uint64_t bytes_each = 0;                        // of an answer, about
};

struct SequenceParams {
  std::vector<TokenId> tokens;  // the prompt, >= 1, and what was generated before the sequence came here
  uint32_t generated = 0;       // so many at the end of `tokens` are not the prompt; at least one is
  uint32_t max_positions = 0;   // prompt and generated together; at most those of all pages
  // Where messages of the prompt begin or end, rising: later texts part from it there (KvCache). Only a hint.
  std::vector<uint32_t> boundaries;
  RowAnswers answers;
  int priority = 0;          // higher first; among equals, older first
  uint64_t tenant = 0;       // among equal priorities, tenants share the rows fairly
  uint64_t salt = 0;         // of the prefix cache: model, adapter, KV type
  uint64_t tenant_salt = 0;  // mixed with `salt`: who shares the cache with whom
};

// Guesses of the tokens that follow a sequence's last known one, or its drafts in flight (docs/speculation.md).
struct Drafts {
  std::vector<TokenId> tokens;
  // For each the chance, 0 to 1, that it and all before it are drawn.
  std::vector<float> chances;
  uint32_t least = 0;        // fewer are not launched together
  bool in_one_step = false;  // what the next step leaves of them is dropped
};

// One sequence's rows in a step.
struct StepItem : StepTables {
  SeqId seq{};
  uint32_t incarnation = 0;
  RowClass row_class = RowClass::kPrompt;
  uint32_t first_position = 0;
  uint32_t count = 0;
  bool sample_last = false;  // the last row of a known token decides the next token
  // Guesses of the tokens behind it, whose rows are the last ones of the item. Each decides a token if all before it
  // are drawn. Where drafts are in flight already, these are the tokens behind them, and the item has no other rows.
  std::vector<TokenId> drafts;
  // The position behind the rows of tokens that were known at the launch.
  uint32_t known_end() const { return first_position + count - static_cast<uint32_t>(drafts.size()); }
  bool goes_on() const { return known_end() == first_position; }
  // Rows of it decide tokens.
  bool samples() const { return sample_last || !drafts.empty(); }
  bool operator==(const StepItem&) const = default;
};

struct StepPlan {
  StepId step{};
  std::vector<StepItem> items;
  bool operator==(const StepPlan&) const = default;
};

enum class SeqState : uint8_t { kWaiting, kPrefill, kDecode };

// The part of a landed step that still counts: nothing of a removed, preempted or failed incarnation, and nothing
// behind a draft that was not drawn.
struct LandedStep {
  // Items as launched. Where rows of them decide tokens, the caller owes Append or Remove while SampleOwed.
  std::vector<StepItem> valid;
  std::vector<SeqId> failed;  // they failed twice in a step of their own: the caller must Remove them
};

// The units of one kind.
struct UnitStats {
  uint32_t units = 0, available = 0;  // all of them; those that a sequence can get: free ones and kept ones
  uint32_t kept = 0;                  // they have content that may be used again, and no owner
  uint32_t published = 0;             // their content is found, with owners or without
};

struct SchedulerStats {
  uint32_t waiting = 0, prefill = 0, decode = 0, held = 0, in_flight = 0, tenants = 0;
  uint32_t max_sequences = 0;  // that may run at once
  std::array<UnitStats, kKvGroups> memory{};
  uint32_t window = 0;       // positions that rows of layers with a window read
  uint32_t step_tokens = 0;  // prompt rows that a step may have beside the sequences that decode now
  uint32_t most_in_flight = 0, decode_groups = 0;  // that are allowed now
  uint64_t preemptions = 0, cached_positions = 0, computed_rows = 0, replayed_rows = 0, steps = 0;
  // First admissions, and the time from Add to them; the admissions that follow preemptions come beside.
  uint64_t admitted = 0, readmitted = 0;
  LatencyHistogram queue_wait;
  // Admissions that looked for their tokens in the prefix cache, and the tokens; those that found some, and the tokens
  // that were found (cached_positions).
  uint64_t cache_lookups = 0, cache_lookup_tokens = 0, cache_hits = 0;
  uint64_t aged = 0;  // sequences that were overtaken too often and went before all others
  // Most steps that were launched between the one in which a decoding sequence could have got its row and the one in
  // which it got it. A sequence that is held, runs alone after a fault, or waits for a block is not counted.
  uint64_t longest_decode_gap = 0;
  uint64_t leaked_blocks = 0;                    // found and given back by Reclaim
  uint64_t draft_rows = 0, accepted_drafts = 0;  // launched; those that were drawn
};

}  // namespace gyre
