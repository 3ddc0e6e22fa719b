// The scheduler's parts and what binds them. Only scheduler*.cc include this.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/engine/kv_cache.h"
#include "coordinator/engine/scheduled_sequence.h"
#include "coordinator/engine/scheduler.h"
#include "coordinator/engine/sequence_queue.h"
#include "coordinator/engine/step_pace.h"

namespace gyre {

struct Scheduler::Rep {
  // Rows of a sequence behind its known tokens, in all steps in flight.
  static constexpr size_t kMostUndecided = 64;
  using Sequence = ScheduledSequence;
  using Stage = Sequence::Stage;
  struct FlightItem {
    Sequence* sequence;
    StepItem item;
    bool is_void = false;  // a draft before its rows was not drawn
  };
  struct Flight {
    StepId step{};
    std::vector<FlightItem> items;
    bool decodes = false;  // it is the step of one of the groups of decoding sequences
    bool goes_on = false;  // it has nothing but rows behind drafts that were in flight
    // Some of its rows count for nothing, and the stages may have left them out.
    bool has_void() const {
      return std::any_of(items.begin(), items.end(), [](const FlightItem& i) { return i.is_void; });
    }
    StepRows rows;
    Deadline launched{};
  };
  struct Draft {  // the step that is being made
    StepPlan plan;
    Flight flight;
    uint32_t decode_left = 0;   // decode rows that it may still get
    uint32_t prompt_limit = 0;  // prompt rows at most
    bool admits = false;        // sequences that wait may come in
    bool alone = false;         // it is the step of one sequence: nothing is added
    uint32_t rows() const { return flight.rows.all(); }
  };

  explicit Rep(const SchedulerOptions& options);

  // Making a step (scheduler_plan.cc).
  void MarkReady();
  bool PlanAlone(Draft* draft);
  void PlanTogether(Draft* draft);
  void PlanDecodes(uint32_t kept, Draft* draft);
  void PlanQueue(Draft* draft);
  bool PlanPrompt(Draft* draft);
  uint32_t PromptLimit(uint32_t decode_rows) const;
  uint32_t PromptRoom(const Draft& draft) const;
  bool Overdue(const Sequence& s) const;
  void LaunchDecode(Sequence* s, Draft* draft);
  void LaunchPrefill(Sequence* s, Draft* draft);
  void Launch(Sequence* s, uint32_t count, Draft* draft);
  uint32_t PrefillCount(const Sequence& s, uint32_t rows_left) const;
  uint32_t AnswerEnd(const Sequence& s) const;
  void PlanDrafts(Draft* draft);
  void AddDrafts(size_t item, uint32_t count, Draft* draft);
  void PlanBehind(Draft* draft);
  void LaunchBehind(Sequence* s, uint32_t count, Draft* draft);
  uint32_t HoldDrafts(Sequence* s, uint32_t count);
  void CountDrafts(Sequence* s, uint32_t count, Draft* draft);
  // Steps in flight: those that keep no other step out do not count, as they may turn out to be void; and those that
  // are void wholly.
  size_t SteadyFlights() const {
    return static_cast<size_t>(
        std::count_if(flights.begin(), flights.end(), [](const Flight& f) { return !f.goes_on; }));
  }
  size_t VoidFlights() const {
    return static_cast<size_t>(std::count_if(flights.begin(), flights.end(), [](const Flight& f) {
      return std::all_of(f.items.begin(), f.items.end(), [](const FlightItem& i) { return i.is_void; });
    }));
  }
  bool MayGoOn(const Sequence& s) const {
    return s.goes_on() && !cache.has_state() && s.drafted.size() < kMostUndecided && pace.most_in_flight() > 1;
  }

  // Admission (scheduler_admit.cc).
  Sequence* NextWaiting() const;
  bool Follows(const Sequence& s) const;
  bool Admit(Sequence* s, Draft* draft);
  void AdmitRest(Draft* draft);
  bool TryAdmit(Sequence* s);
  uint64_t SaltOf(const Sequence& s) const { return MixSalts(s.params.salt, s.params.tenant_salt); }
  KvUnits Growth(const Sequence& s) const;
  KvUnits Margin(const Sequence& s) const;
  uint64_t Changes() const { return changes + cache.changes(); }

  // These choose the sequence that gives up its blocks (scheduler.cc).
  uint32_t Grow(Sequence* s, uint32_t must, uint32_t want);
  bool TakeBackDrafts();
  bool PreemptHeld();
  bool PreemptBelow(const Sequence* needy);
  void Preempt(Sequence* s);
  void PreemptAll();

  // The outcome of rows and sequences (scheduler.cc).
  void LandItem(FlightItem landing, bool ok, bool alone, LandedStep* landed);
  void LandRows(Sequence* s, StepItem item, bool ok, bool alone, LandedStep* landed);
  void LoseItem(Sequence* s, const StepItem& item, bool ring_lost);
  void CountAnswers(Sequence* s, const StepItem& item, bool launched);
  Status Append(Sequence* s, TokenId token);
  void DropDrafts(Sequence* s);
  void Leave(Sequence* s, Stage stage);
  void Settle(Sequence* s);
  void Publish(Sequence* s) { cache.Publish(s->rows(), s->settled(), landed_step, &s->kv); }

  // scheduler_check.cc
  std::vector<const KvTables*> Tables() const;
  Status CheckSequence(const Sequence& s) const;
  Status CheckLists() const;
  Status CheckFlights() const;

  SchedulerOptions options;
  KvCache cache;
  SequenceQueue queue;
  StepPace pace;
  std::deque<Flight> flights;  // oldest first
  uint64_t answer_bytes = 0;   // of all sequences: ScheduledSequence::answer_bytes
  uint32_t draining = 0;       // sequences that left while steps of theirs were in flight: their blocks will come back
  // The best-ranked sequence that found no block: until it has one, worse ones take none and nobody is admitted.
  const Sequence* starved = nullptr;
  // The waiting sequence that did not fit when Changes() had this value: not tried again before it has another.
  const Sequence* unfit = nullptr;
  uint64_t unfit_at = 0;
  uint64_t changes = 0;  // beside the cache's: sequences that left, are held or not held any more
  uint64_t next_step = 1;
  uint64_t tries = 0;            // to make a step
  uint64_t shared = 1;           // number of the next step that is not of one sequence alone
  double answer = 128;           // tokens that sequences generate, in the mean of those that ended lately
  Deadline now{};                // of the call that is under way
  uint64_t landed_step = 0;      // the last one that landed
  std::vector<Sequence*> order;  // of PlanDecodes and PlanQueue
  SchedulerStats counts;
};

}  // namespace gyre
