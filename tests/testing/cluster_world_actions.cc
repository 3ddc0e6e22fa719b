// What the state decides: the commands that members get, the links, the engine.
#include <algorithm>
#include <utility>
#include <variant>

#include "tests/testing/cluster_world.h"

namespace gyre::testing {

using std::chrono::milliseconds;

void ClusterWorld::Do(ClusterState::Actions actions) {
  for (ClusterAction& a : actions) std::visit([this](auto& action) { Play(action); }, a);
  CheckEngine();
}

void ClusterWorld::Dry(ClusterState::Actions actions) {
  const bool only_answers = std::all_of(actions.begin(), actions.end(),
                                        [](const ClusterAction& a) { return std::holds_alternative<AnswerCaller>(a); });
  if (!only_answers) Wrong("a dry run does something");
  Do(std::move(actions));
}

// For a stopped engine there must be an event that lets it go on.
void ClusterWorld::CheckEngine() {
  if (state_.serving() && !engine.has_whole_ring()) Wrong("the state serves, the engine has no ring");
  if (engine.ring() && !status().plan) Wrong("the engine has a ring of no plan");
  if (engine.stopped() && !wiring_) Wrong("the engine is stopped and nothing goes on");
}

std::shared_ptr<SimulatedMember> ClusterWorld::Find(uint64_t id) {
  for (auto& [name, m] : members_) {
    if (m->id == id) return m;
  }
  Wrong("a command to a member that has left");
  return std::make_shared<SimulatedMember>();
}

void ClusterWorld::Say(const std::shared_ptr<SimulatedMember>& m, Epoch epoch, StageAnswer what) {
  if (m->silent) return;
  After(m->delay, [this, m, epoch, what = std::move(what)] {
    if (m->silent || !has(m->info.name) || members_.at(m->info.name) != m) return;
    const auto* done = std::get_if<StageDone>(&what);
    if (done != nullptr && done->verb == ChangeVerb::kPrepare && m->prepared.count(epoch) == 0) return;  // aborted
    Do(state_.Said(m->id, {.worker = "whoever", .epoch = epoch, .what = what}, now()));
  });
}

void ClusterWorld::Play(TellMember& a) {
  const auto m = Find(a.member);
  if (a.change.verb == ChangeVerb::kPrepare) return Prepare(m, a.change.prepare);
  if (a.change.verb == ChangeVerb::kMove && m->prepared.count(a.change.epoch) == 0)
    Wrong("a Move of what is not prepared");
  if (auto answer = m->Tell(a.change)) Say(m, a.change.epoch, std::move(*answer));
}

void ClusterWorld::Play(DismissMember& a) {
  const auto m = Find(a.member);
  if (std::exchange(m->dismissed, true)) Wrong("a member is dismissed twice");
}

void ClusterWorld::Prepare(const std::shared_ptr<SimulatedMember>& m, const PrepareRequest& request) {
  const Epoch epoch = request.plan.epoch;
  if (!used_.insert({epoch.number, m->id}).second) Wrong("a member prepares an epoch twice");
  if (wiring_ != epoch && !drop_epochs_.insert(epoch.number).second) Wrong("an epoch is used twice");
  if (request.stage >= 0) num_blocks = state_.status(now()).num_blocks;
  m->Prepare(request, num_blocks);
  CheckSources(request);
  if (request.stage < 0) return Say(m, epoch, m->ready);
  CheckRoom(*m, request);
  if (m->silent) return;
  if (!m->load_fault.ok()) return Say(m, epoch, StageFault{m->load_fault});
  if (request.restores != 0 && !m->restore_fault.ok()) return Say(m, epoch, StageFault{m->restore_fault});
  Say(m, epoch, StageProgress{1, 2});
  After(m->delay, [this, m, epoch] {
    if (m->silent || m->prepared.count(epoch) == 0) return;
    m->loaded = epoch;
    Say(m, epoch, StageProgress{2, 2});
    MaybeConnect(m->prepared.at(epoch).plan);
  });
}

// A plan that is restored is the last one that served, and its pages are at members that ran it or replicated it.
void ClusterWorld::CheckSources(const PrepareRequest& request) {
  if (request.restores != 0 && request.restores != engine.restorable()) Wrong("another plan is restored");
  for (const LayerSource& s : request.sources) {
    if (!has(s.worker)) {
      Wrong("pages are to come from a member that has left");
      continue;
    }
    const SimulatedMember& from = member(s.worker);
    if (s.replica != 0 && from.replica_of != s.replica) Wrong("pages are to come from a replica that there is not");
    if (s.replica == 0 && (s.layers.begin < from.runs.begin || s.layers.end > from.runs.end))
      Wrong("pages are to come from a member that does not run their layers");
  }
}

void ClusterWorld::CheckRoom(const SimulatedMember& m, const PrepareRequest& request) {
  const uint64_t needs = m.NeedsFor(request, policy_.sizes);
  if (m.info.memory == 0 || needs <= m.info.memory) return;
  const LayerRange gets = request.plan.stages[static_cast<size_t>(request.stage)].layers;
  Wrong(fmt::format("{} is asked for more than it holds: {} blocks of {} beside {} of {} need {} of {} (plan {})",
                    m.info.name, num_blocks, FormatRange(gets), m.blocks, FormatRange(m.runs), needs, m.info.memory,
                    request.plan.epoch.number));
}

// Once all stages have loaded, their links are made; or one fails, and with it those before it.
void ClusterWorld::MaybeConnect(const Plan& plan) {
  std::vector<std::shared_ptr<SimulatedMember>> stages;
  for (const StagePlan& s : plan.stages) {
    if (!has(s.worker()) || members_.at(s.worker())->loaded != plan.epoch) return;
    stages.push_back(members_.at(s.worker()));
  }
  for (size_t i = stages.size(); i-- > 1;) {
    if (stages[i]->reachable) continue;
    for (size_t k = 0; k < i; ++k) {
      Say(stages[k], plan.epoch,
          StageFault{Unavailable("{}: {}", kLinkToNextStage, k + 1 == i ? "Connection refused" : "it was closed")});
    }
    return;
  }
  const Status first = stages[0]->reachable ? wiring_fault : Unavailable("Connection refused");
  if (wiring_ == plan.epoch) {
    After(milliseconds(1), [this, epoch = plan.epoch, first] {
      if (wiring_ == epoch && first.ok()) wired_ = true;
      Do(state_.Wired(epoch, first, absl::OkStatus(), now()));
    });
  }
  for (const auto& m : stages) {
    if (m != stages[0] || first.ok()) Say(m, plan.epoch, m->ready);
  }
}

void ClusterWorld::Play(ForgetMember& a) {
  for (const auto& [name, m] : members_) {
    if (m->id != a.member.id) continue;
    if (!may_forget) Wrong("a member that has not left is forgotten");
    forgotten.push_back(name);
    members_.erase(name);
    return;
  }
}

void ClusterWorld::Play(WireEnds& a) {
  if (wiring_) Wrong(fmt::format("plan {} begins while plan {} is being made", a.plan.epoch.number, wiring_->number));
  if (!epochs_.insert(a.plan.epoch.number).second || drop_epochs_.count(a.plan.epoch.number) > 0) {
    Wrong("an epoch is used twice");
  }
  if (!a.plan.Validate().ok()) Wrong("a plan is not valid");
  wiring_ = a.plan.epoch;
  wired_ = false;
  begun.push_back(a.plan);
}

void ClusterWorld::Play(CancelWiring& a) {
  if (wiring_ != a.epoch) Wrong("a wiring is cancelled that is not under way");
  wiring_.reset();
  cancelled.push_back(a.epoch);
}

void ClusterWorld::Play(DrainEngine& a) {
  Check(engine.Take(a, now()));
  After(milliseconds(5), [this, epoch = a.epoch] {
    if (engine.EndDrain()) Do(state_.Drained(epoch, {1, 2}, now()));
  });
}

void ClusterWorld::Play(RestoreCache& a) {
  Check(engine.Take(a));
  After(milliseconds(5), [this, epoch = a.epoch] { Do(state_.Drained(epoch, {1, 2}, now())); });
}

void ClusterWorld::Play(ResumeNewRing& a) {
  if (wiring_ != a.epoch || !wired_) Wrong("a ring that is not wired");
  Check(engine.Take(a));
  wiring_.reset();
}

void ClusterWorld::Play(EndRing& a) {
  engine.Take(a);
  After(milliseconds(1), [this, epoch = a.epoch] {
    if (engine.ring() == epoch) BreakRing();
  });
}

void ClusterWorld::Play(GrowCache& a) {
  engine.Take(a);
  for (auto& [name, m] : members_) m->blocks = a.num_blocks;
}

void ClusterWorld::Play(AnswerCaller& a) {
  auto& answer = answers_.at(a.ask);
  if (answer) Wrong("a caller is answered twice");
  answer = std::move(a.answer);
}

void ClusterWorld::Play(WriteLog& a) {
  log_.push_back(fmt::format("{:.3f} {}", std::chrono::duration<double>(now().time_since_epoch()).count(), a.line));
}

void ClusterWorld::Play(ProbeLinks& a) {
  const auto m = Find(a.member);
  if (m->info.local) Wrong("the local member is to measure links");
  probes.push_back(m->info.name);
  if (m->probes) Say(m, {}, MeasureLinks(m->links, a.peers));
}

void ClusterWorld::Play(ProbeFromHere& a) {
  probes.push_back("");
  After(milliseconds(1), [this, probed = MeasureLinks(links, a.peers)] { Do(state_.Probed(probed, now())); });
}

}  // namespace gyre::testing
