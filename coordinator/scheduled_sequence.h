// A sequence as the scheduler sees it. For scheduler*.cc only.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "coordinator/block_manager.h"
#include "coordinator/scheduler_types.h"

namespace gyre {

// The state of a tenant, which shares the rows of steps with others. `rows` is a virtual time: the least goes first.
struct Tenant {
  uint64_t rows = 0;  // computed for it, and what it missed while it wanted nothing
  uint32_t sequences = 0;
};

struct ScheduledSequence {
  enum class Stage : uint8_t {
    kWaiting,  // not admitted; while its steps in flight land it still holds the blocks of the incarnation before
    kRunning,
    kFailed,   // it failed alone, repeatedly: waits for Remove
    kRemoved,  // known until its last step in flight has landed
  };

  SeqId id{};
  SequenceParams params;          // params.tokens grows with Append
  std::vector<RowClass> classes;  // one for each token's row, as the prefix cache sees it
  uint32_t prompt = 0;            // tokens
  uint64_t age = 0;               // order of arrival, kept when preempted
  Deadline added{};
  Tenant* tenant = nullptr;
  uint32_t overtaken = 0;  // by admissions of younger ones, while it was the oldest without its whole prompt
  bool aged = false;       // overtaken too often: goes before all others from then on
  uint64_t ready_at = 0;   // value of Rep::shared when it could first have got its decode row; 0: it can't now
  uint64_t tried_in = 0;   // value of Rep::tries when its prompt was last tried
  Stage stage = Stage::kWaiting;
  uint32_t incarnation = 1;
  bool held = false;      // gets no rows
  bool suspect = false;   // a step with rows of it failed, and none has landed since: it runs in steps of its own
  uint32_t errors = 0;    // of those steps since the last landed row
  uint32_t losses = 0;    // rings that were lost with rows of it, since it got beyond those
  uint32_t proven = 0;    // rows that have landed once, in any incarnation: they do no harm
  uint32_t lost_end = 0;  // when so many rows have landed, those that were in flight at the last loss did no harm
  // With recurrent state a replay lands rows again that were never at fault: errors count until `blamed_end` rows have
  // landed, and rows before blamed_from go beside others.
  uint32_t blamed_from = 0, blamed_end = 0;
  uint32_t high_water = 0;  // rows launched in any incarnation
  uint64_t planned_in = 0;  // the last step that has rows of it
  uint32_t in_flight = 0;   // steps; all of one incarnation, as it is not admitted again before they landed

  // The fields that follow belong to the incarnation that holds the blocks.
  uint64_t salt = 0;        // params.salt mixed with the ring's
  uint64_t ring_salts = 0;  // value of Rep::ring_salts when it was admitted
  bool poisoned = false;    // a step failed: what is in flight is worthless
  uint32_t launched = 0;    // rows [0, launched)
  uint32_t landed = 0;
  uint32_t cached = 0;       // rows from the prefix cache
  uint32_t published = 0;    // blocks
  ChainId chain = kNoChain;  // of the last published block
  std::vector<BlockId> blocks;
  // In layers with a window: its blocks from number window_first on; those that only it may take.
  uint32_t window_first = 0, window_reserved = 0;
  std::deque<BlockId> window;
  // The beginning shared with others: the position up to which their blocks served, and up to which one waits for it.
  uint32_t branch = 0, shared = 0;
  // With recurrent state: its slot, the snapshot that it begins with until the step that copies it has landed, and the
  // slots that steps copy it to, with the positions, rising.
  BlockId slot = kNoBlock, begins_with = kNoBlock;
  struct Snapshot {
    uint32_t position = 0;
    BlockId slot = kNoBlock;
  };
  std::deque<Snapshot> snapshots;

  uint32_t WindowEnd() const { return window_first + static_cast<uint32_t>(window.size()); }  // in blocks
  bool running() const { return stage == Stage::kRunning; }
  uint32_t size() const { return static_cast<uint32_t>(params.tokens.size()); }
  // At most the row of the last generated token is left to launch.
  bool decoding() const { return size() > prompt && launched + 1 >= size(); }
  bool launchable() const { return !poisoned && !held && launched < size(); }
  bool suspected() const { return losses >= 2; }
  // Two lost rings may be the fault of its next rows: nothing else is in flight beside them, so that a third blames
  // nobody else. The rows before them may go with others.
  bool needs_ring() const { return suspected() && launched >= proven; }
  bool needs_step() const { return (suspect && launched >= blamed_from) || needs_ring(); }
  // Another row of its prompt, or of what is computed again, may go beside others.
  bool wants_prompt_rows() const { return !decoding() && launchable() && !needs_step(); }
  bool wants_decode_row() const { return decoding() && launchable() && !needs_step(); }
  bool sample_owed() const { return running() && !poisoned && landed == size(); }
};

// The better rank comes first: aged, then of higher priority, then older.
struct ByRank {
  bool operator()(const ScheduledSequence* a, const ScheduledSequence* b) const {
    if (a->aged != b->aged) return a->aged;
    return a->params.priority != b->params.priority ? a->params.priority > b->params.priority : a->age < b->age;
  }
};

}  // namespace gyre
