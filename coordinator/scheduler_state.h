// The scheduler's state. Only scheduler*.cc include this.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/block_manager.h"
#include "coordinator/chain_pool.h"
#include "coordinator/scheduled_sequence.h"
#include "coordinator/scheduler.h"
#include "coordinator/step_budget.h"
#include "coordinator/steps_in_flight.h"

namespace gyre {

struct Scheduler::Rep {
  using Sequence = ScheduledSequence;
  using Stage = Sequence::Stage;
  struct Flight {
    StepId step{};
    std::vector<std::pair<Sequence*, StepItem>> items;
    bool decodes = false;  // it is the step of one of the groups of decoding sequences
    uint32_t decode_rows = 0, prompt_rows = 0;
    Deadline launched{};
  };
  struct Draft {  // the step that is being made
    StepPlan plan;
    Flight flight;
    uint32_t decode_left = 0;   // decode rows that it may still get
    uint32_t prompt_limit = 0;  // prompt rows at most
    bool admits = false;        // sequences that wait may come in
    bool alone = false;         // it is the step of one sequence: nothing is added
    uint32_t rows() const { return flight.decode_rows + flight.prompt_rows; }
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
  void MarkReady();
  bool PlanAlone(Draft* draft);
  void PlanTogether(Draft* draft);
  void PlanDecodes(uint32_t kept, Draft* draft);
  void PlanQueue(Draft* draft);
  bool PlanPrompt(Draft* draft);
  uint32_t DecodeRows() const;
  uint32_t Groups() const { return options.adapts_in_flight ? depth.groups() : options.decode_groups; }
  uint32_t MostInFlight() const { return options.adapts_in_flight ? depth.steps() : options.max_in_flight; }
  uint32_t PromptLimit(uint32_t decode_rows) const;
  uint32_t PromptRoom(const Draft& draft) const;
  bool Overdue(const Sequence& s) const;
  void LaunchDecode(Sequence* s, Draft* draft);
  void LaunchPrefill(Sequence* s, Draft* draft);
  void Launch(Sequence* s, uint32_t count, Draft* draft);
  uint32_t Chunk(const Sequence& s) const;
  uint32_t PrefillCount(const Sequence& s, uint32_t rows_left) const;

  // Admission, and the order of sequences (scheduler_admit.cc).
  Tenant* TenantOf(uint64_t id);
  void Arrive(Sequence* s);
  void Age(const Sequence& admitted);
  bool GoesFirst(const Sequence& a, const Sequence& b) const;
  Sequence* NextPrompt() const;
  bool Follows(const Sequence& s) const;
  Sequence* NextWaiting() const;
  bool Admit(Sequence* s, Draft* draft);
  void AdmitRest(Draft* draft);
  bool TryAdmit(Sequence* s);
  uint64_t SaltOf(const Sequence& s) const;
  struct Need {  // blocks, by group
    uint32_t pages = 0, window = 0;
  };
  Need Growth(const Sequence& s) const;
  Need Margin(const Sequence& s) const;
  uint32_t Reserved(const Sequence& s) const;
  void RaiseReserves();

  // Blocks, and who gives them up (scheduler_blocks.cc).
  uint32_t Grow(Sequence* s, uint32_t must, uint32_t want);
  bool TakeBlock(Sequence* s, uint32_t want, bool barred);
  bool Starves() const;
  Sequence* HeldVictim() const;
  bool PreemptHeld();
  bool PreemptBelow(const Sequence* needy);
  std::vector<uint32_t> Owners() const;

  // Recurrent state (scheduler_slots.cc).
  bool has_state() const { return options.num_slots > 0; }
  bool TakeSlot(Sequence* s, const BlockManager::Prefix& prefix);
  uint32_t NextSnapshot(const Sequence& s) const;
  SlotTable SlotsOf(Sequence* s, uint32_t end);
  void KeepSnapshot(Sequence* s);
  void ReleaseSlots(Sequence* s);
  std::vector<uint32_t> SlotOwners() const;

  // Layers with a window (scheduler_window.cc).
  bool has_window() const { return options.window_blocks > 0; }
  uint32_t FirstRead(uint32_t position) const;
  uint32_t WindowQuota() const;
  uint32_t WindowNeed(uint64_t positions) const;
  uint32_t WindowAhead(const Sequence& s) const;
  bool TakeWindowBlock(Sequence* s, bool barred);
  size_t CommonPrefix(const std::vector<BlockId>& found) const;
  void TakeWindow(Sequence* s, const std::vector<BlockId>& prefix);
  bool WorthKeeping(const Sequence& s, uint32_t block) const;
  void ReleaseBehind(Sequence* s);
  void ReleaseWindow(Sequence* s, bool unused = false);
  void DropReserve(Sequence* s);
  std::vector<uint32_t> WindowOwners() const;
  Status CheckWindow(const Sequence& s) const;
  Status CheckReserve() const;

  // The outcome of rows and sequences (scheduler.cc).
  void LandItem(Sequence* s, StepItem item, bool ok, bool alone, LandedStep* landed);
  void LoseItem(Sequence* s);
  void Blame(Sequence* s, const StepItem& item) const {
    if (!has_state()) return;
    s->blamed_from = s->blamed_end == 0 ? item.first_position : std::min(s->blamed_from, item.first_position);
    s->blamed_end = std::max(s->blamed_end, item.first_position + item.count);
  }
  void Leave(Sequence* s, Stage stage);
  void PreemptAll();
  std::optional<CachedUnit> Content(MemoryCounts::Place place) const;  // scheduler_cache.cc
  void Settle(Sequence* s);
  void PublishLanded(Sequence* s);
  void ReleaseTable(std::vector<BlockId>* table);

  // scheduler_check.cc
  Status CheckSequence(const Sequence& s) const;
  Status CheckLists() const;
  Status CheckFlights() const;

  SchedulerOptions options;
  const MemoryCounts whole;  // what the pools have room for: the cache may be cut, and grows again
  BlockManager blocks;
  ChainPool slots;
  ChainPool window;              // blocks of layers with a window
  uint32_t window_reserved = 0;  // of them, for running sequences
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
  uint64_t tries = 0;   // to make a step
  uint64_t shared = 1;  // number of the next step that is not of one sequence alone
  std::unordered_map<uint64_t, Tenant> tenants;
  StepBudget budget;
  StepsInFlight depth;
  double answer = 128;           // tokens that sequences generate, in the mean of those that ended lately
  Deadline now{};                // of the call that is under way
  Deadline last_landed{};        // of steps
  uint64_t landed_step = 0;      // the last one that landed
  std::vector<Sequence*> order;  // of PlanDecodes and PlanQueue
  SchedulerStats counts;
};

}  // namespace gyre
