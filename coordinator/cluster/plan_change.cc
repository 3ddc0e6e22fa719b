#include "coordinator/cluster/plan_change.h"

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
                       const ChangeTimeouts& timeouts, bool restores)
    : epoch_(epoch),
      participants_(std::move(participants)),
      engine_runs_(engine_runs),
      restores_(restores),
      timeouts_(timeouts) {}

PlanChange::Actions PlanChange::ToAll(ChangeVerb verb) const {
  Actions actions;
  for (const Participant& p : participants_)
    actions.push_back({.kind = ChangeAction::kTell, .worker = p.worker, .verb = verb});
  return actions;
}

const Participant* PlanChange::Find(const std::string& worker) const {
  for (const Participant& p : participants_) {
    if (p.worker == worker) return &p;
  }
  return nullptr;
}

// The worker at the end of hop `stage` in the new plan; hops end at the coordinator where there is none.
std::string PlanChange::StageName(int stage) const {
  for (const Participant& p : participants_) {
    if (stage >= 0 && p.stage == stage) return p.worker;
  }
  return "";
}

PlanChange::Actions PlanChange::Start(Deadline now) {
  for (const Participant& p : participants_) waiting_[p.worker] = true;
  deadline_ = now + timeouts_.prepare;
  return ToAll(ChangeVerb::kPrepare);
}

std::vector<std::string> PlanChange::Missing() const {
  std::vector<std::string> names;
  for (const auto& [worker, waits] : waiting_) {
    if (waits) names.push_back(worker);
  }
  return names;
}

// The worker that keeps the others waiting, as far as silence can tell. One that does not load keeps its neighbors
// waiting for its links. A link that does not come to be leaves both its ends waiting, and then it is the end that
// can't be reached.
std::string PlanChange::LateMember() const {
  std::vector<int> stages;
  std::vector<std::string> loading;
  for (const std::string& worker : Missing()) {
    const Participant* p = Find(worker);
    if (!p->in_new()) return Missing().size() == 1 ? worker : "";
    stages.push_back(p->stage);
    const auto progress = progress_.find(worker);
    if (progress == progress_.end() || progress->second.done < progress->second.total) loading.push_back(worker);
  }
  if (state_ == ChangeState::kPreparing && loading.size() == 1) return loading[0];
  std::sort(stages.begin(), stages.end());
  if (stages.size() == 1) return StageName(stages[0]);
  const bool link = state_ == ChangeState::kPreparing && stages.size() == 2 && stages[1] == stages[0] + 1;
  return link ? StageName(stages[1]) : "";
}

// The worker's answer to the current command is in; true: it was the last one.
bool PlanChange::Answered(const std::string& worker) {
  const auto it = waiting_.find(worker);
  if (it == waiting_.end() || !it->second) return false;
  it->second = false;
  return Missing().empty();
}

PlanChange::Actions PlanChange::Abort(const Status& why, const std::string& culprit, bool ring_whole) {
  const bool stopped = state_ == ChangeState::kDraining || state_ == ChangeState::kMoving;
  state_ = ChangeState::kAborted;
  status_ = why;
  culprit_ = culprit;
  deadline_ = blame_at_ = sources_until_ = kNoDeadline;
  Actions actions = ToAll(ChangeVerb::kAbort);
  // A ring that is not whole is repaired or lost, and the engine is told so: until then it sends nothing over it.
  if (stopped && engine_runs_ && ring_whole) actions.push_back({.kind = ChangeAction::kResumeOld});
  return actions;
}

PlanChange::Actions PlanChange::Fail(const Status& why, const std::string& culprit) {
  state_ = ChangeState::kFaulted;
  status_ = why;
  culprit_ = culprit;
  deadline_ = blame_at_ = sources_until_ = kNoDeadline;
  return {};
}

PlanChange::Actions PlanChange::MaybeReady(Deadline now) {
  if (!wired_ || link_fault_ || MissesNew()) return {};
  if (!Missing().empty()) {
    // Members that only give pages are not waited for any longer: what they did not give is computed again.
    if (!restores_) return {};
    if (sources_until_ == kNoDeadline) sources_until_ = now + timeouts_.restore_sources;
    if (now < sources_until_) return {};
  }
  sources_until_ = kNoDeadline;
  if (!engine_runs_ && !restores_) return Decide(now);
  state_ = ChangeState::kDraining;
  deadline_ = now + timeouts_.drain;
  return {{.kind = ChangeAction::kDrainEngine}};
}

bool PlanChange::MissesNew() const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [this](const auto& w) { return w.second && Find(w.first)->in_new(); });
}

PlanChange::Actions PlanChange::Decide(Deadline now) {
  state_ = ChangeState::kCommitting;
  deadline_ = now + timeouts_.commit;
  // A stage commits between two steps: without a drain it may be in the middle of a long one.
  if (!engine_runs_) deadline_ += timeouts_.drain;
  waiting_.clear();
  // Where the old plan is lost, nobody depends on what a member without layers in the new one does.
  for (const Participant& p : participants_) waiting_[p.worker] = p.in_new() || !restores_;
  return ToAll(ChangeVerb::kCommit);
}

PlanChange::Actions PlanChange::Done() {
  state_ = ChangeState::kDone;
  deadline_ = kNoDeadline;
  Actions actions{{.kind = ChangeAction::kResumeNew}};
  for (ChangeAction& a : ToAll(ChangeVerb::kRelease)) actions.push_back(std::move(a));
  return actions;
}

PlanChange::Actions PlanChange::OnWired(const Status& to_first, const Status& from_last, Deadline now) {
  if (state_ != ChangeState::kPreparing || wired_) return {};
  int stages = 0;
  for (const Participant& p : participants_) stages += p.in_new();
  // One that was cancelled failed because of the other.
  if (!from_last.ok() && !absl::IsCancelled(from_last)) return OnLinkFault(stages, from_last, "", now);
  if (!to_first.ok()) return OnLinkFault(0, to_first, "", now);
  if (!from_last.ok()) return OnLinkFault(stages, from_last, "", now);
  wired_ = true;
  return MaybeReady(now);
}

PlanChange::Actions PlanChange::OnDrained(const UnitList& live, Deadline now) {
  if (state_ != ChangeState::kDraining) return {};
  state_ = ChangeState::kMoving;
  deadline_ = now + (restores_ ? timeouts_.restore : timeouts_.move);
  waiting_.clear();
  Actions actions;
  for (const Participant& p : participants_) {
    if (!p.copies) continue;
    waiting_[p.worker] = true;
    actions.push_back({.kind = ChangeAction::kTell, .worker = p.worker, .verb = ChangeVerb::kMove, .units = live});
  }
  return actions.empty() ? Decide(now) : actions;
}

PlanChange::Actions PlanChange::OnEvent(const StageEvent& event, Deadline now) {
  const Participant* from = Find(event.worker);
  if (event.epoch != epoch_ || over() || from == nullptr) return {};
  if (const auto* fault = std::get_if<StageFault>(&event.what)) return OnFault(*from, fault->status, now);
  if (const auto* progress = std::get_if<StageProgress>(&event.what)) {
    progress_[event.worker] = *progress;
    if (state_ == ChangeState::kPreparing) deadline_ = now + timeouts_.prepare;
    return {};
  }
  if (event.AnswerTo(ChangeVerb::kPrepare) != nullptr && state_ == ChangeState::kPreparing) {
    Answered(event.worker);
    deadline_ = now + timeouts_.prepare;
    return MaybeReady(now);
  }
  if (const StageDone* moved = event.AnswerTo(ChangeVerb::kMove); moved && state_ == ChangeState::kMoving) {
    const auto it = waiting_.find(event.worker);
    if (it == waiting_.end() || !it->second) return {};
    missing_.insert(moved->missing.begin(), moved->missing.end());
    pages_moved_ += moved->pages;
    last_pages_ += moved->last_pages;
    if (Answered(event.worker)) return Decide(now);
  }
  if (event.AnswerTo(ChangeVerb::kCommit) != nullptr && state_ == ChangeState::kCommitting) {
    committed_.insert(event.worker);
    if (Answered(event.worker)) return Done();
  }
  return {};
}

// A stage says what it can't do. Failing links spread up the ring; anything else is the stage's own.
PlanChange::Actions PlanChange::OnFault(const Participant& from, const Status& why, Deadline now) {
  if (state_ == ChangeState::kPreparing && from.in_new()) {
    auto begins = [text = Message(why)](const std::string& with) { return text.compare(0, with.size(), with) == 0; };
    if (begins(kLinkToNextStage)) return OnLinkFault(from.stage + 1, why, from.worker, now);
    if (begins(kLinkFromStageBefore)) return OnLinkFault(from.stage, why, from.worker, now);
  }
  const Status named = Annotate(why, from.worker);
  if (state_ == ChangeState::kCommitting) {
    if (from.in_new()) return Fail(named, from.worker);
    return Answered(from.worker) ? Done() : Actions{};
  }
  if (restores_ && !from.in_new()) {
    Answered(from.worker);
    return state_ == ChangeState::kPreparing ? MaybeReady(now) : Actions{};
  }
  restore_failed_ = restores_;
  return Abort(named, from.worker, true);
}

// Hop i leads from stage i-1 to stage i. Its receiver is at fault: it can't be reached, or refuses. Only the
// coordinator's own address is taken to be good, so that whoever can't reach it is at fault itself. `reporter`: "" is
// the coordinator.
PlanChange::Actions PlanChange::OnLinkFault(int hop, const Status& why, const std::string& reporter, Deadline now) {
  if (link_fault_ && link_fault_->hop >= hop) return {};
  blame_at_ = std::min(blame_at_, now + timeouts_.blame);
  if (absl::IsInternal(why) || absl::IsResourceExhausted(why)) {  // descriptors, say, ran out there
    link_fault_ = LinkFault{.hop = hop, .why = reporter.empty() ? why : Annotate(why, reporter), .culprit = reporter};
    return {};
  }
  std::string text = Message(why);
  for (const std::string prefix : {kLinkToNextStage, kLinkFromStageBefore}) {
    if (text.compare(0, prefix.size() + 2, prefix + ": ") == 0) text = text.substr(prefix.size() + 2);
  }
  const std::string sender = StageName(hop - 1), receiver = StageName(hop);
  link_fault_ = LinkFault{
      .hop = hop,
      .why = MakeStatus(why.code(), "the link from {} to {} failed: {}", sender.empty() ? "the coordinator" : sender,
                        receiver.empty() ? "the coordinator" : receiver, text),
      .culprit = receiver.empty() ? sender : receiver};
  return {};
}

PlanChange::Actions PlanChange::OnLost(const std::string& worker, const Status& why, Deadline) {
  const Participant* lost = Find(worker);
  if (over() || lost == nullptr) return {};
  if (state_ != ChangeState::kCommitting) return Abort(why, worker, !lost->in_old);
  // One that has no layers in the new plan is not missed.
  if (lost->in_new()) return Fail(why, worker);
  return Answered(worker) ? Done() : Actions{};
}

PlanChange::Actions PlanChange::OnRingBroken(const Status& why) {
  // After the decision nothing depends on the old ring any more.
  if (over() || decided()) return {};
  return Abort(Annotate(why, "the running ring broke"), "", false);
}

PlanChange::Actions PlanChange::OnTick(Deadline now) {
  if (over()) return {};
  if (now >= blame_at_) return Abort(link_fault_->why, link_fault_->culprit, true);
  if (now >= sources_until_) return MaybeReady(now);
  return now >= deadline_ ? OnLate(now) : Actions{};
}

PlanChange::Actions PlanChange::OnLate(Deadline) {
  const std::vector<std::string> missing = Missing();
  std::string names;
  for (const std::string& worker : missing) names += (names.empty() ? "" : ", ") + worker;
  if (state_ == ChangeState::kDraining) names = "the ring";
  const Status late = DeadlineExceeded("plan {} was given up while {}: no answer from {}", epoch_.number,
                                       ChangeStateName(state_), names.empty() ? "the coordinator's links" : names);
  if (state_ == ChangeState::kCommitting) {
    const bool missed = std::any_of(missing.begin(), missing.end(),
                                    [this](const std::string& worker) { return Find(worker)->in_new(); });
    return missed ? Fail(late, LateMember()) : Done();
  }
  drain_expired_ = state_ == ChangeState::kDraining && engine_runs_;
  restore_failed_ = state_ == ChangeState::kMoving && restores_;
  return Abort(late, drain_expired_ ? "" : LateMember(), !drain_expired_);
}

StageProgress PlanChange::progress() const {
  StageProgress sum;
  for (const auto& [worker, p] : progress_) sum.done += p.done, sum.total += p.total;
  return sum;
}

StageProgress PlanChange::progress(const std::string& worker) const {
  const auto it = progress_.find(worker);
  return it == progress_.end() ? StageProgress{} : it->second;
}

}  // namespace gyre
