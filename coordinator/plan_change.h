// A plan change as a transaction: prepare, drain, move, decide, commit. Pure: events and a clock value in, actions out.
// docs/resize.md has the states; before the decision any failure aborts and the old plan goes on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/plan.h"
#include "base/stage_control.h"
#include "base/status.h"

namespace gyre {

enum class ChangeState : uint8_t {
  kPreparing,   // stages load, wire and copy; the old plan serves
  kDraining,    // all are ready; the engine launches nothing, steps in flight land
  kMoving,      // what was written since the last round is copied
  kCommitting,  // decided: every participant gets Commit
  kDone,        // every participant runs the new plan
  kAborted,     // the old plan goes on, whole
  kFaulted,     // a participant was lost after the decision: the new plan stands, not whole
};
const char* ChangeStateName(ChangeState state);

struct ChangeTimeouts {
  Duration prepare = std::chrono::seconds(120);  // without a word from a participant
  Duration drain = std::chrono::seconds(60);
  Duration move = std::chrono::seconds(60);
  Duration commit = std::chrono::seconds(10);
};

struct ChangeAction {
  enum Kind : uint8_t {
    kPrepare,
    kMove,
    kCommit,
    kRelease,
    kAbort,        // to `worker`
    kDrainEngine,  // and tell OnDrained
    kResumeOld,    // the engine goes on as before
    kResumeNew,    // the engine goes on over the new plan's links
  } kind{};
  std::string worker;
  std::vector<BlockId> blocks;  // kMove
  bool operator==(const ChangeAction&) const = default;
};

struct Participant {
  std::string worker;
  bool in_old = false, in_new = false;
  bool copies = false;  // pulls pages from others
};

// Not thread-safe.
class PlanChange {
 public:
  // `engine_runs`: the old plan serves and must be drained; else there is nothing to drain.
  PlanChange(Epoch epoch, std::vector<Participant> participants, bool engine_runs, const ChangeTimeouts& timeouts);

  using Actions = std::vector<ChangeAction>;
  Actions Start(Deadline now);
  // Of any epoch; what is not about this change is ignored.
  Actions OnEvent(const StageEvent& event, Deadline now);
  // The coordinator's own links of the new plan are up, or can't be made.
  Actions OnWired(const Status& status, Deadline now);
  Actions OnDrained(std::vector<BlockId> live, Deadline now);
  // A participant is gone, or the running ring broke ("" then).
  Actions OnLost(const std::string& worker, const Status& why, Deadline now);
  Actions OnTick(Deadline now);

  ChangeState state() const { return state_; }
  bool over() const { return state_ >= ChangeState::kDone; }
  bool decided() const { return state_ >= ChangeState::kCommitting && state_ != ChangeState::kAborted; }
  const Status& status() const { return status_; }  // why it was aborted or faulted
  Epoch epoch() const { return epoch_; }
  Deadline deadline() const { return deadline_; }
  // Aborted because a step in flight did not land.
  bool drain_expired() const { return drain_expired_; }
  const std::vector<Participant>& participants() const { return participants_; }
  // Of weights, over all participants.
  StageProgress progress() const;
  uint64_t pages_moved() const { return pages_moved_; }
  uint64_t last_pages() const { return last_pages_; }

 private:
  Actions ToAll(ChangeAction::Kind kind) const;
  Actions Abort(const Status& why);
  Actions MaybeReady(Deadline now);
  Actions Decide(Deadline now);
  std::string Missing() const;
  bool Answered(const std::string& worker);

  const Epoch epoch_;
  const std::vector<Participant> participants_;
  const bool engine_runs_;
  const ChangeTimeouts timeouts_;
  ChangeState state_ = ChangeState::kPreparing;
  Status status_;
  Deadline deadline_ = kNoDeadline;
  bool wired_ = false;
  bool drain_expired_ = false;
  std::map<std::string, bool> waiting_;  // whose answer to the current command is missing
  std::map<std::string, StageProgress> progress_;
  uint64_t pages_moved_ = 0, last_pages_ = 0;
};

}  // namespace gyre
