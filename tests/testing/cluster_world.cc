#include "tests/testing/cluster_world.h"

#include <algorithm>

namespace gyre::testing {

ClusterWorld::ClusterWorld(const ClusterPolicy& policy) : engine(policy), policy_(policy), state_(policy, "here:1") {
  Tick();
}

ClusterPolicy ClusterWorld::Policy(int layers, int min_workers) {
  ClusterPolicy p;
  p.term = 7;
  p.sizes.layers.assign(static_cast<size_t>(layers), 100);
  p.sizes.memory.assign(static_cast<size_t>(layers), {kPageGroup, 1});
  p.sizes.counts[kPageGroup] = 10;
  p.min_workers = min_workers;
  return p;
}

SimulatedMember& ClusterWorld::Join(const std::string& name, MemberInfo info) {
  info.name = name;
  info.address = name + ":1";
  info.host = "host";
  auto m = std::make_shared<SimulatedMember>();
  m->info = info;
  m->id = next_id_++;
  members_[name] = m;
  Do(state_.Joined(info, m->id, now()));
  if (policy_.rebalance.mode != Rebalance::kOff && !info.local) {
    After(first_report, [this, m] {
      if (has(m->info.name) && members_.at(m->info.name) == m) Report(m->info.name, {});
    });
  }
  return *m;
}

void ClusterWorld::Leave(const std::string& name, const std::string& why) {
  const Membership gone = Of(name);
  members_.erase(name);
  Do(Seen().Left(gone, Unavailable("{}", why), now()));
}

void ClusterWorld::Silence(const std::string& name) {
  const Membership gone = Of(name);
  members_.erase(name);
  Do(Seen().Left(gone, Unavailable("nothing was heard of it"), now(), false));
}

void ClusterWorld::Detach(const std::string& name) {
  Do(state_.Detached(Of(name), member(name).stream, Unavailable("its stream ended"), now()));
}

void ClusterWorld::Reattach(const std::string& name) { Do(state_.Reattached(Of(name), ++member(name).stream, now())); }

void ClusterWorld::FindGone(const std::string& name) {
  const Membership gone = has(name) ? Of(name) : Membership{name, 0};
  may_forget = true;
  Do(Seen().FoundGone(gone, now()));
}

void ClusterWorld::EndOldStream(const std::string& name) {
  Do(state_.Detached(Of(name), member(name).stream - 1, Unavailable("its stream ended"), now()));
}

void ClusterWorld::WantsToLeave(const std::string& name) { Do(state_.WantsToLeave(Of(name), now())); }

void ClusterWorld::LetDismissedGo() {
  std::vector<std::string> names;
  for (const auto& [name, m] : members_) {
    if (m->dismissed) names.push_back(name);
  }
  for (const std::string& name : names) Leave(name);
}

uint64_t ClusterWorld::Asked() {
  answers_[next_ask_] = std::nullopt;
  return next_ask_++;
}

uint64_t ClusterWorld::Resize(const std::string& text) {
  const uint64_t ask = Asked();
  Do(state_.AskedToResize(ask, text, now()));
  return ask;
}

uint64_t ClusterWorld::ResizeCache(uint64_t tokens) {
  const uint64_t ask = Asked();
  Do(state_.AskedToResizeCache(ask, tokens, now()));
  return ask;
}

uint64_t ClusterWorld::Drain(const std::string& name) {
  const uint64_t ask = Asked();
  Do(state_.AskedToDrain(ask, name, now()));
  return ask;
}

uint64_t ClusterWorld::Undrain(const std::string& name) {
  const uint64_t ask = Asked();
  Do(state_.AskedToUndrain(ask, name, now()));
  return ask;
}

uint64_t ClusterWorld::Remove(const std::string& name) {
  const uint64_t ask = Asked();
  Do(state_.AskedToRemove(ask, name, now()));
  return ask;
}

uint64_t ClusterWorld::TakeProposed() {
  const uint64_t ask = Asked();
  Do(state_.AskedForProposed(ask, now()));
  return ask;
}

StatusOr<ChangeReport> ClusterWorld::DryRun(const std::string& text, uint32_t live_blocks) {
  const uint64_t ask = Asked();
  Dry(state_.AskedToResize(ask, text, now(), {.dry_run = true, .live = {.units = {live_blocks}}}));
  return answer(ask);
}

StatusOr<ChangeReport> ClusterWorld::DryDrain(const std::string& name) {
  const uint64_t ask = Asked();
  Dry(state_.AskedToDrain(ask, name, now(), {.dry_run = true}));
  return answer(ask);
}

void ClusterWorld::BreakRing() {
  if (const auto ring = engine.BreakRing()) Do(Seen().RingBroken(*ring, Unavailable("the ring: a link ended"), now()));
}

void ClusterWorld::Advance(Duration d) {
  const Deadline end = now() + d;
  for (int rounds = 0; problem_.none(); ++rounds) {
    if (rounds > 200000) return Wrong("the state asks for ticks without an end");
    const Deadline next = std::min(time_.next(), state_.deadline());
    if (next > end) break;
    time_.PassTo(next);
    if (!time_.DoNext()) Tick();
  }
  time_.PassTo(end);
  Tick();
}

std::string ClusterWorld::ranges() const {
  const ClusterStatus s = status();
  std::string out;
  if (!s.plan) return out;
  for (const StagePlan& stage : s.plan->stages) {
    out += (out.empty() ? "" : ",") + fmt::format("{}={}", stage.worker(), FormatRange(stage.layers));
  }
  return out;
}

bool ClusterWorld::logged(const std::string& part) const {
  return std::any_of(log_.begin(), log_.end(),
                     [&part](const std::string& line) { return line.find(part) != std::string::npos; });
}

}  // namespace gyre::testing
