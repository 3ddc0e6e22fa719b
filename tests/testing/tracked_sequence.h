// A sequence as its caller knows it: what of it was launched and landed, and what a Scheduler must do with it next.
#pragma once

#include <cstdint>
#include <deque>

#include "base/ids.h"
#include "coordinator/engine/scheduler_types.h"
#include "tests/testing/simulated_stage.h"

namespace gyre::testing {

struct TrackedSequence : RowInputs {
  uint32_t max_positions = 0;
  RowAnswers answers;
  uint32_t incarnation = 0;
  // Positions. Of what has arrived, `landed` are those of known tokens.
  uint32_t launched = 0, landed = 0, arrived = 0;
  uint32_t in_flight = 0;                    // steps
  uint32_t errors = 0;                       // of steps with nothing else in them
  uint32_t failed_from = 0, failed_end = 0;  // rows of steps that failed
  uint32_t losses = 0;                       // rings that were lost with rows in flight
  uint32_t lost_end = 0;                     // the end of those rows
  uint32_t proven = 0;                       // rows that landed once
  uint64_t admitted_namespace = 0;           // of the ring
  bool admitted = false, started = false, owed = false, held = false;
  bool poisoned = false;  // what is in flight is worthless
  bool suspect = false;   // of having failed a step
  bool troubled = false;  // a step of this incarnation failed
  // Drafts behind the last token: their rows are launched, and their tokens are not drawn yet.
  std::deque<TokenId> drafts;
  uint64_t drops = 0;            // of drafts: what was launched before, and has not landed, is void
  bool takes_no_drafts = false;  // some were in a step or ring that failed

  // The same for another scheduler, which knows nothing of it.
  TrackedSequence Anew() const;
  // `cached`: where it starts if this is its first step.
  void Launch(const StepItem& item, uint32_t cached, uint64_t ring_namespace);
  // Its step landed. Returns whether the rows count. `recurrent`: the stages have recurrent state.
  bool Land(const StepItem& item, bool is_void, bool recurrent);
  // Its step failed. Returns whether the sequence fails with it.
  bool LandFailed(const StepItem& item, bool is_void, bool alone);
  // It has another token, the next draft or not.
  void Append(TokenId token);
  void DropDrafts();
  // The end of those of the rows that are of known tokens.
  uint32_t KnownEnd(const StepItem& item) const;
  // The last landed row is wanted once more.
  void Repeat();
  // It goes on with another token behind it and without `drop` tokens after the first `keep`.
  void Shift(int keep, int drop, TokenId token);
  // It starts anew, and an answer that its caller still owed is no longer wanted.
  void Preempt(uint32_t new_incarnation);
  // Nothing that is in flight lands.
  void LoseFlights();
  // Its rows in flight were lost with a ring that broke, up to `end`; `alone`: no others were. Returns whether the
  // sequence fails.
  bool LoseRing(uint32_t end, bool alone);

 private:
  void EndFlight();
  void Prove(bool recurrent);
};

}  // namespace gyre::testing
