// A sequence as the scheduler sees it. For the scheduler and its parts only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "coordinator/engine/kv_cache.h"
#include "coordinator/engine/quarantine.h"
#include "coordinator/engine/scheduler_types.h"

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
  uint64_t ready_at =
      0;  // the number of the shared step in which it could first have got its decode row; 0: it can't now
  uint64_t tried_in = 0;  // the try to make a step in which its prompt was last tried
  Stage stage = Stage::kWaiting;
  uint32_t incarnation = 1;
  bool held = false;           // gets no rows
  bool awaits_mask = false;    // gets no rows until it is known which ids may come next
  bool awaits_drafts = false;  // nor until drafts are found
  Quarantine quarantine;
  uint32_t high_water = 0;    // rows launched in any incarnation
  uint64_t planned_in = 0;    // the last step that has rows of it
  uint32_t in_flight = 0;     // steps; all of one incarnation, as it is not admitted again before they landed
  uint64_t answer_bytes = 0;  // of SequenceParams::answers in these steps

  Drafts proposed;               // may go behind the row of the last token
  bool takes_no_drafts = false;  // some were in flight when a step or a ring failed, and may be the cause

  // The fields that follow belong to the incarnation that holds the blocks.
  KvTables kv;
  bool poisoned = false;  // a step failed: what is in flight is worthless
  uint32_t launched = 0;  // rows [0, launched), those of drafts too
  // The tokens of launched rows behind `tokens` that are not decided: in flight, or landed while the token that is owed
  // is drawn. Rows in flight that are not among them, nor of known tokens, are void.
  std::deque<TokenId> drafted;
  uint32_t arrived = 0;  // rows that have landed, those of drafts too
  uint32_t reach = 0;    // positions for which it got blocks because of drafts
  uint32_t landed = 0;   // those of them that are of known tokens
  uint32_t cached = 0;   // rows from the prefix cache

  bool running() const { return stage == Stage::kRunning; }
  uint32_t size() const { return static_cast<uint32_t>(params.tokens.size()); }
  // Of the answers that are wanted of the rows [begin, end).
  uint64_t AnswerBytes(uint32_t begin, uint32_t end) const {
    const uint32_t from = std::max(begin, params.answers.first), to = std::min(end, params.answers.end);
    return from < to ? (to - from) * params.answers.bytes_each : 0;
  }
  TokenSpan rows() const { return {params.tokens, classes}; }
  // At most the row of the last generated token is left to launch.
  bool decoding() const { return size() > prompt && launched + 1 >= size(); }
  bool launchable() const { return !poisoned && !held && !awaits_mask && !awaits_drafts && launched < size(); }
  bool needs_ring() const { return quarantine.NeedsRing(launched); }
  bool needs_step() const { return quarantine.NeedsStep(launched); }
  // Another row of its prompt, or of what is computed again, may go beside others.
  bool wants_prompt_rows() const { return !decoding() && launchable() && !needs_step(); }
  bool wants_decode_row() const { return decoding() && launchable() && !needs_step(); }
  // All rows that are known or guessed are launched, and more guesses may follow them.
  bool goes_on() const {
    return running() && !poisoned && !held && !awaits_mask && decoding() && launched >= size() && may_draft();
  }
  bool sample_owed() const { return running() && !poisoned && landed == size(); }
  // A step or a ring that failed says nothing against the rows that go now.
  bool may_draft() const { return !takes_no_drafts && !quarantine.suspected(); }
  // Rows before it have landed and are not sent again: the last one may be (Scheduler::Repeat) while its token is not
  // drawn.
  uint32_t settled() const { return landed - (sample_owed() ? 1 : 0); }
};

// The better rank comes first: aged, then of higher priority, then older.
struct ByRank {
  bool operator()(const ScheduledSequence* a, const ScheduledSequence* b) const {
    if (a->aged != b->aged) return a->aged;
    return a->params.priority != b->params.priority ? a->params.priority > b->params.priority : a->age < b->age;
  }
};

}  // namespace gyre
