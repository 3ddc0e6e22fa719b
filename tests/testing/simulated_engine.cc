#include "tests/testing/simulated_engine.h"

namespace gyre::testing {

SimulatedEngine::SimulatedEngine(const ClusterPolicy& policy) : policy_(policy) {
  served_ = policy.record && !policy.record->stages.empty();
}

Status SimulatedEngine::Take(const DrainEngine&, Deadline now) {
  if (!has_whole_ring()) return Internal("an engine without a ring is drained");
  calls.push_back("drain");
  draining_ = true;
  drain_started_ = now;
  drained_ = false;
  return absl::OkStatus();
}

bool SimulatedEngine::EndDrain() {
  if (!drains || !stopped()) return false;
  drained_ = true;
  return true;
}

Status SimulatedEngine::Take(const RestoreCache& a) {
  if (ring_) return Internal("a cache is restored while there is a ring");
  if (!replicated && (!policy_.has_cache || last_ring_)) return Internal("a cache is restored that was forgotten");
  calls.push_back(a.step ? fmt::format("restore {}", *a.step) : "restore nothing");
  restored_ = a.epoch;
  return absl::OkStatus();
}

Status SimulatedEngine::Take(const ResumeOldRing&, Deadline now) {
  if (!has_whole_ring()) return Internal("the engine goes on over a ring that is broken");
  if (!drained_ && now - drain_started_ >= policy_.timeouts.drain)
    return Internal("the engine goes on over a ring that lost a step");
  if (!draining_) return Internal("an engine goes on that was not stopped");
  calls.push_back("old");
  draining_ = false;
  return absl::OkStatus();
}

Status SimulatedEngine::Take(const ResumeNewRing& a) {
  if (has_whole_ring() && !draining_) return Internal("the engine's ring is changed while it uses it");
  if (a.restores && restored_ != a.epoch) return Internal("the engine goes on with a cache that was not restored");
  calls.push_back(fmt::format("new {}{}", a.epoch.number, a.restores ? " with the cache" : ""));
  missing = a.missing;
  step_floor = a.step_floor;
  replicated = false;
  ring_ = last_ring_ = a.epoch;
  served_ = true;
  cache_namespace = a.cache_namespace;
  own_member = a.own_member;
  draining_ = ring_broken_ = false;
  return absl::OkStatus();
}

Status SimulatedEngine::Take(const RefuseRequests& a) {
  if (served_) return Internal("requests are refused after a plan has served");
  calls.push_back("refuse");
  losses.push_back(a.why);
  return absl::OkStatus();
}

Status SimulatedEngine::Take(const AwaitRing& a) {
  if (!served_) return Internal("requests wait before a plan has served");
  if (ring_) crashed = a.crashed, replicated = a.replicated, awaited_since = a.since;
  calls.push_back("await");
  losses.push_back(a.why);
  ring_.reset();
  draining_ = ring_broken_ = false;
  return absl::OkStatus();
}

std::optional<Epoch> SimulatedEngine::BreakRing() {
  if (!has_whole_ring()) return std::nullopt;
  ring_broken_ = true;
  return ring_;
}

uint64_t SimulatedEngine::restorable() const {
  if (last_ring_) return last_ring_->number;
  return policy_.record && policy_.has_cache ? policy_.record->plan : 0;
}

}  // namespace gyre::testing
