// What failed steps and lost rings say against a sequence: which of its next rows run apart from others, so that a
// poison request fails nobody beside it (docs/faults.md). Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gyre {

// Positions count rows of the sequence. `launched`: rows before it have been launched.
class Quarantine {
 public:
  // Two lost rings may be the fault of its next rows.
  bool quarantined() const { return losses_ >= 2; }
  // Nothing else may be in flight beside its next rows, so that a third lost ring blames nobody else. The rows before
  // them may go with others.
  bool NeedsRing(uint32_t launched) const { return quarantined() && launched >= proven_; }
  // Its next rows go in a step of their own.
  bool NeedsStep(uint32_t launched) const { return (failed_ && launched >= failed_from_) || NeedsRing(launched); }
  // A step failed or a ring was lost with rows of it, and it is not shown yet that they did no harm.
  bool suspected() const { return failed_ || losses_ > 0; }
  // The rows from `launched` on that may go in one step, as far as `end`.
  uint32_t StepEnd(uint32_t launched, uint32_t end) const {
    if (failed_ && launched < failed_from_) end = std::min(end, failed_from_);
    if (quarantined() && launched < proven_) end = std::min(end, proven_);
    return end;
  }

  // Rows up to `end` have landed.
  void Landed(uint32_t end) {
    proven_ = std::max(proven_, end);
    if (end >= lost_end_) losses_ = 0;
    if (end < failed_end_) return;
    errors_ = failed_from_ = failed_end_ = 0;
    failed_ = false;
  }
  // A step with the rows [first, end) failed. `recurrent`: rows are computed again from before `first`.
  void Failed(uint32_t first, uint32_t end, bool recurrent) {
    failed_ = true;
    if (!recurrent) return;
    failed_from_ = failed_end_ == 0 ? first : std::min(failed_from_, first);
    failed_end_ = std::max(failed_end_, end);
  }
  // The failed step had rows of this sequence only. True: it is the second one.
  bool FailedAlone() { return ++errors_ >= 2; }
  // Whether rows up to `end` may be why a ring was lost.
  bool MayHaveCost(uint32_t end) const { return end > proven_; }
  // A ring was lost with rows up to `end` in flight. `alone`: no other sequence's. True: it is the third one, alone.
  bool LostRing(uint32_t end, bool alone) {
    lost_end_ = std::max(losses_ > 0 ? lost_end_ : 0, end);
    return (!quarantined() || alone) && ++losses_ >= 3;
  }
  // The row before `end` was asked about when a ring was lost: it lands again, and only the next row proves something.
  void Unprove(uint32_t end) { proven_ = std::min(proven_, end - 1); }
  // The sequence begins again with `size` other tokens, so its rows have new positions.
  void Restart(uint32_t size) {
    proven_ = failed_from_ = failed_end_ = 0;
    lost_end_ = size + 1;
  }

 private:
  bool failed_ = false;    // a step with rows of it failed, and none has landed since
  uint32_t errors_ = 0;    // of steps of its own since the last landed row
  uint32_t losses_ = 0;    // rings that were lost with rows of it, since it got beyond those
  uint32_t proven_ = 0;    // rows that have landed once, in any incarnation: they do no harm
  uint32_t lost_end_ = 0;  // when so many rows have landed, those that were in flight at the last loss did no harm
  // With recurrent state a replay lands rows again that were never at fault: errors count until `failed_end_` rows have
  // landed, and rows before failed_from_ go beside others.
  uint32_t failed_from_ = 0, failed_end_ = 0;
};

}  // namespace gyre
