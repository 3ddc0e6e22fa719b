#include "coordinator/plan_change.h"

#include <utility>

namespace gyre {

const char* ChangeStateName(ChangeState state) {
  switch (state) {
    case ChangeState::kPreparing: return "preparing";
    case ChangeState::kDraining: return "draining";
    case ChangeState::kMoving: return "moving";
    case ChangeState::kCommitting: return "committing";
    case ChangeState::kDone: return "done";
    case ChangeState::kAborted: return "aborted";
    case ChangeState::kFaulted: return "faulted";
  }
  return "?";
}

PlanChange::PlanChange(Epoch epoch, std::vector<Participant> participants, bool engine_runs,
                       const ChangeTimeouts& timeouts)
    : epoch_(epoch), participants_(std::move(participants)), engine_runs_(engine_runs), timeouts_(timeouts) {}

PlanChange::Actions PlanChange::ToAll(ChangeAction::Kind kind) const {
  Actions actions;
  for (const Participant& p : participants_) actions.push_back({.kind = kind, .worker = p.worker, .blocks = {}});
  return actions;
}

PlanChange::Actions PlanChange::Start(Deadline now) {
  for (const Participant& p : participants_) waiting_[p.worker] = true;
  deadline_ = now + timeouts_.prepare;
  return ToAll(ChangeAction::kPrepare);
}

std::string PlanChange::Missing() const {
  std::string names;
  for (const auto& [worker, waits] : waiting_) {
    if (waits) names += (names.empty() ? "" : ", ") + worker;
  }
  return names.empty() ? "the coordinator's links" : names;
}

// The worker's answer to the current command is in; true: it was the last one.
bool PlanChange::Answered(const std::string& worker) {
  const auto it = waiting_.find(worker);
  if (it == waiting_.end() || !it->second) return false;
  it->second = false;
  for (const auto& [name, waits] : waiting_) {
    if (waits) return false;
  }
  return true;
}

PlanChange::Actions PlanChange::Abort(const Status& why) {
  const bool stopped = state_ == ChangeState::kDraining || state_ == ChangeState::kMoving;
  state_ = ChangeState::kAborted;
  status_ = why;
  deadline_ = kNoDeadline;
  Actions actions = ToAll(ChangeAction::kAbort);
  if (stopped && engine_runs_) actions.push_back({.kind = ChangeAction::kResumeOld, .worker = "", .blocks = {}});
  return actions;
}

PlanChange::Actions PlanChange::MaybeReady(Deadline now) {
  if (!wired_) return {};
  for (const auto& [worker, waits] : waiting_) {
    if (waits) return {};
  }
  if (!engine_runs_) return Decide(now);
  state_ = ChangeState::kDraining;
  deadline_ = now + timeouts_.drain;
  return {{.kind = ChangeAction::kDrainEngine, .worker = "", .blocks = {}}};
}

PlanChange::Actions PlanChange::Decide(Deadline now) {
  state_ = ChangeState::kCommitting;
  deadline_ = now + timeouts_.commit;
  waiting_.clear();
  for (const Participant& p : participants_) waiting_[p.worker] = true;
  return ToAll(ChangeAction::kCommit);
}

PlanChange::Actions PlanChange::OnWired(const Status& status, Deadline now) {
  if (state_ != ChangeState::kPreparing || wired_) return {};
  if (!status.ok()) return Abort(Annotate(status, "the coordinator"));
  wired_ = true;
  return MaybeReady(now);
}

PlanChange::Actions PlanChange::OnDrained(std::vector<BlockId> live, Deadline now) {
  if (state_ != ChangeState::kDraining) return {};
  state_ = ChangeState::kMoving;
  deadline_ = now + timeouts_.move;
  waiting_.clear();
  Actions actions;
  for (const Participant& p : participants_) {
    if (!p.copies) continue;
    waiting_[p.worker] = true;
    actions.push_back({.kind = ChangeAction::kMove, .worker = p.worker, .blocks = live});
  }
  return actions.empty() ? Decide(now) : actions;
}

PlanChange::Actions PlanChange::OnEvent(const StageEvent& event, Deadline now) {
  if (event.epoch != epoch_ || over()) return {};
  bool known = false;
  for (const Participant& p : participants_) known |= p.worker == event.worker;
  if (!known) return {};
  if (const auto* fault = std::get_if<StageFault>(&event.what)) {
    return OnLost(event.worker, Annotate(fault->status, event.worker), now);
  }
  if (const auto* progress = std::get_if<StageProgress>(&event.what)) {
    progress_[event.worker] = *progress;
    if (state_ == ChangeState::kPreparing) deadline_ = now + timeouts_.prepare;
    return {};
  }
  if (std::holds_alternative<StageReady>(event.what) && state_ == ChangeState::kPreparing) {
    Answered(event.worker);
    deadline_ = now + timeouts_.prepare;
    return MaybeReady(now);
  }
  if (const auto* moved = std::get_if<StageMoved>(&event.what); moved && state_ == ChangeState::kMoving) {
    const auto it = waiting_.find(event.worker);
    if (it == waiting_.end() || !it->second) return {};
    pages_moved_ += moved->pages;
    last_pages_ += moved->last_pages;
    if (Answered(event.worker)) return Decide(now);
  }
  if (std::holds_alternative<StageCommitted>(event.what) && state_ == ChangeState::kCommitting &&
      Answered(event.worker)) {
    state_ = ChangeState::kDone;
    deadline_ = kNoDeadline;
    Actions actions{{.kind = ChangeAction::kResumeNew, .worker = "", .blocks = {}}};
    for (ChangeAction& a : ToAll(ChangeAction::kRelease)) actions.push_back(std::move(a));
    return actions;
  }
  return {};
}

PlanChange::Actions PlanChange::OnLost(const std::string& worker, const Status& why, Deadline) {
  if (over()) return {};
  if (state_ == ChangeState::kCommitting) {
    // One that has no layers in the new plan is not missed.
    for (const Participant& p : participants_) {
      if (p.worker != worker || p.in_new) continue;
      StageEvent gone{.worker = worker, .epoch = epoch_, .what = StageCommitted{}};
      return OnEvent(gone, Deadline{});
    }
    if (worker.empty()) return {};
    state_ = ChangeState::kFaulted;
    status_ = why;
    deadline_ = kNoDeadline;
    return {};
  }
  return Abort(why);
}

PlanChange::Actions PlanChange::OnTick(Deadline now) {
  if (over() || now < deadline_) return {};
  const Status late =
      DeadlineExceeded("plan {} was given up while {}: no answer from {}", epoch_.number, ChangeStateName(state_),
                       state_ == ChangeState::kDraining ? "the ring" : Missing());
  if (state_ == ChangeState::kCommitting) {
    state_ = ChangeState::kFaulted;
    status_ = late;
    deadline_ = kNoDeadline;
    return {};
  }
  drain_expired_ = state_ == ChangeState::kDraining;
  return Abort(late);
}

StageProgress PlanChange::progress() const {
  StageProgress sum;
  for (const auto& [worker, p] : progress_) sum.done += p.done, sum.total += p.total;
  return sum;
}

}  // namespace gyre
