// What the scheduler keeps. For scheduler*.cc only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/block_manager.h"
#include "coordinator/scheduler.h"

namespace gyre {

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
  Stage stage = Stage::kWaiting;
  uint32_t incarnation = 1;
  bool held = false;        // gets no rows
  bool suspect = false;     // a step with rows of it failed, and none has landed since: it runs in steps of its own
  uint32_t errors = 0;      // of those steps since the last landed row
  uint32_t losses = 0;      // broken rings in a row that took rows of it along, since the last landed row
  uint32_t high_water = 0;  // rows launched in any incarnation
  uint64_t planned_in = 0;  // the last step that has rows of it
  uint32_t in_flight = 0;   // steps; all of one incarnation, as it is not admitted again before they landed

  // What follows belongs to the incarnation that holds the blocks.
  uint64_t salt = 0;        // params.salt mixed with the ring's
  uint64_t ring_salts = 0;  // value of Rep::ring_salts when it was admitted
  bool poisoned = false;    // a step failed: what is in flight is worthless
  uint32_t launched = 0;    // rows [0, launched)
  uint32_t landed = 0;
  uint32_t cached = 0;       // rows from the prefix cache
  uint32_t published = 0;    // blocks
  ChainId chain = kNoChain;  // of the last published block
  std::vector<BlockId> blocks;

  bool running() const { return stage == Stage::kRunning; }
  uint32_t size() const { return static_cast<uint32_t>(params.tokens.size()); }
  // At most the row of the last generated token is left to launch.
  bool decoding() const { return size() > prompt && launched + 1 >= size(); }
  bool launchable() const { return !poisoned && !held && launched < size(); }
  // Two broken rings may be its fault: nothing else is in flight beside it, so that a third blames nobody else.
  bool needs_ring() const { return losses >= 2; }
  bool needs_step() const { return suspect || needs_ring(); }
  bool sample_owed() const { return running() && !poisoned && landed == size(); }
};

// The better rank comes first: higher priority, then older.
struct ByRank {
  bool operator()(const ScheduledSequence* a, const ScheduledSequence* b) const {
    return a->params.priority != b->params.priority ? a->params.priority > b->params.priority : a->age < b->age;
  }
};

struct Scheduler::Rep {
  using Sequence = ScheduledSequence;
  using Stage = Sequence::Stage;
  struct Flight {
    StepId step{};
    std::vector<std::pair<Sequence*, StepItem>> items;
    bool decodes = false;  // some of its rows are of sequences that decode
  };
  struct Draft {  // the step that is being made
    StepPlan plan;
    Flight flight;
    uint32_t rows = 0;
  };

  explicit Rep(const SchedulerOptions& options);

  Sequence* Find(SeqId id) const;
  uint32_t BlocksFor(uint64_t positions) const {
    return static_cast<uint32_t>((positions + options.block_size - 1) / options.block_size);
  }
  RowClass ClassAt(const Sequence& s, uint32_t position) const {
    return position < s.prompt ? RowClass::kPrompt : RowClass::kGenerated;
  }

  // Making a step (scheduler_plan.cc).
  bool PlanAlone(Draft* draft);
  void PlanDecodes(Draft* draft);
  void PlanPrefills(Draft* draft);
  void Admit(Draft* draft);
  bool TryAdmit(Sequence* s);
  void LaunchPrefill(Sequence* s, Draft* draft);
  void Launch(Sequence* s, uint32_t count, Draft* draft);
  uint32_t Grow(Sequence* s, uint32_t must, uint32_t want);
  Sequence* HeldVictim() const;
  bool PreemptHeld();
  bool PreemptBelow(const Sequence* needy);
  uint32_t Chunk(const Sequence& s) const;
  uint32_t PrefillCount(const Sequence& s, uint32_t rows_left) const;

  // What becomes of sequences (scheduler.cc).
  void LandItem(Sequence* s, StepItem item, bool ok, bool alone, LandedStep* landed);
  void LoseItem(Sequence* s);
  void Leave(Sequence* s, Stage stage);
  void Settle(Sequence* s);
  void PublishLanded(Sequence* s);
  void ReleaseTable(std::vector<BlockId>* table);

  // scheduler_check.cc
  Status CheckSequence(const Sequence& s) const;
  Status CheckLists() const;
  Status CheckFlights() const;

  SchedulerOptions options;
  BlockManager blocks;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> running;  // by rank
  std::set<Sequence*, ByRank> waiting;
  std::deque<Flight> flights;  // oldest first
  uint32_t draining = 0;       // sequences that left while steps of theirs were in flight: their blocks will come back
  // The best-ranked sequence that found no block: until it has one, worse ones take none and nobody is admitted.
  const Sequence* starved = nullptr;
  // The waiting sequence that did not fit when `changes` had this value: not tried again before it has another.
  const Sequence* unfit = nullptr;
  uint64_t unfit_at = 0;
  uint64_t changes = 0;  // counts what admission depends on: blocks given back or published, sequences that left
  uint64_t ring_salt = 0;
  uint64_t ring_salts = 0;  // counts the changes of ring_salt
  uint64_t next_age = 0;
  uint64_t next_step = 1;
  SchedulerStats counts;
};

}  // namespace gyre
