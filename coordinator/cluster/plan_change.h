// A plan change as a transaction: prepare, drain, move, decide, commit. Pure: events and a clock value in, actions out.
// docs/resize.md has the states; before the decision any failure aborts and the old plan goes on.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/plan.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "coordinator/cluster/change_timeouts.h"

namespace gyre {

enum class ChangeState : uint8_t {
  kPreparing,   // stages load, wire and copy; the old plan serves
  kDraining,    // all are ready; the engine launches nothing, steps in flight land
  kMoving,      // what was written since the last round is copied
  kCommitting,  // decided: every participant gets Commit
  kDone,        // every participant runs the new plan
  kAborted,     // the old plan goes on, whole
  kFaulted,     // a participant was lost after the decision: the plan is lost with it
};
const char* ChangeStateName(ChangeState state);

struct ChangeAction {
  enum Kind : uint8_t {
    kTell,         // `worker` is told to do what `verb` says
    kDrainEngine,  // and call OnDrained
    kResumeOld,    // the engine goes on as before: the old plan's ring is whole
    kResumeNew,    // the engine goes on over the new plan's links
  } kind{};
  std::string worker;
  ChangeVerb verb{};
  UnitList units;  // of ChangeVerb::kMove
};

struct Participant {
  std::string worker;
  bool in_old = false;  // it has layers in the plan that runs
  int stage = -1;       // in the new plan; -1: it has no layers there
  bool copies = false;  // it pulls pages from others
  bool in_new() const { return stage >= 0; }
};

// Not thread-safe.
class PlanChange {
 public:
  // `engine_runs`: the old plan serves and must be drained; otherwise there is nothing to drain. `restores`: the old
  // plan is lost, but its pages are copied: kDrainEngine asks for the list, and members move as if it had served.
  PlanChange(Epoch epoch, std::vector<Participant> participants, bool engine_runs, const ChangeTimeouts& timeouts,
             bool restores = false);

  using Actions = std::vector<ChangeAction>;
  Actions Start(Deadline now);
  // An event of another epoch, or of a worker that takes no part, is ignored.
  Actions OnEvent(const StageEvent& event, Deadline now);
  // The coordinator's own two links of the new plan are there, or one of them can't be made.
  Actions OnWired(const Status& to_first, const Status& from_last, Deadline now);
  Actions OnDrained(const UnitList& live, Deadline now);
  // A member is gone. `why` names it. One that takes no part is no loss.
  Actions OnLost(const std::string& worker, const Status& why, Deadline now);
  // The ring of the plan that runs is broken.
  Actions OnRingBroken(const Status& why);
  Actions OnTick(Deadline now);

  ChangeState state() const { return state_; }
  bool over() const { return state_ >= ChangeState::kDone; }
  bool decided() const { return state_ >= ChangeState::kCommitting && state_ != ChangeState::kAborted; }
  const Status& status() const { return status_; }  // why it was aborted or faulted
  // The worker that it failed because of; "" where that is not known.
  const std::string& culprit() const { return culprit_; }
  Epoch epoch() const { return epoch_; }
  Deadline deadline() const { return std::min({deadline_, blame_at_, sources_until_}); }
  // It was aborted because a step in flight did not land: the old plan's ring must not be used any more.
  bool drain_expired() const { return drain_expired_; }
  // It was aborted by a participant's fault while pages were to be restored: perhaps only these can't be had.
  bool restore_failed() const { return restore_failed_; }
  const std::vector<Participant>& participants() const { return participants_; }
  // The worker has answered Commit.
  bool committed(const std::string& worker) const { return committed_.count(worker) > 0; }
  // The weights that are loaded, over all participants.
  StageProgress progress() const;
  // The last progress of the participant's own loading; all 0: none.
  StageProgress progress(const std::string& worker) const;
  // After a restore, the engine is told which units of the list a member lacks.
  const std::set<BlockId>& missing() const { return missing_; }
  uint64_t pages_moved() const { return pages_moved_; }
  uint64_t last_pages() const { return last_pages_; }

 private:
  struct LinkFault {
    int hop = 0;  // the link that could not be made
    Status why;
    std::string culprit;
  };

  Actions ToAll(ChangeVerb verb) const;
  const Participant* Find(const std::string& worker) const;
  std::string StageName(int stage) const;
  Actions Abort(const Status& why, const std::string& culprit, bool ring_whole);
  Actions OnFault(const Participant& from, const Status& why, Deadline now);
  Actions OnLinkFault(int hop, const Status& why, const std::string& reporter, Deadline now);
  Actions Fail(const Status& why, const std::string& culprit);
  Actions MaybeReady(Deadline now);
  Actions Decide(Deadline now);
  Actions Done();
  Actions OnLate(Deadline now);
  std::vector<std::string> Missing() const;
  std::string LateMember() const;
  bool Answered(const std::string& worker);
  bool MissesNew() const;

  const Epoch epoch_;
  const std::vector<Participant> participants_;
  const bool engine_runs_, restores_;
  const ChangeTimeouts timeouts_;
  ChangeState state_ = ChangeState::kPreparing;
  Status status_;
  std::string culprit_;
  Deadline deadline_ = kNoDeadline;
  Deadline blame_at_ = kNoDeadline;
  Deadline sources_until_ = kNoDeadline;
  std::optional<LinkFault> link_fault_;  // the one farthest down the ring
  bool wired_ = false;
  bool drain_expired_ = false, restore_failed_ = false;
  std::map<std::string, bool> waiting_;  // true: its answer to the current command is missing
  std::set<std::string> committed_;
  std::map<std::string, StageProgress> progress_;
  std::set<BlockId> missing_;
  uint64_t pages_moved_ = 0, last_pages_ = 0;
};

}  // namespace gyre
