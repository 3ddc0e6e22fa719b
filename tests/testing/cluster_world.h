// A simulated world for a ClusterState: members that answer, an engine, links, callers, a clock. It finds violations.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/cluster_state.h"
#include "tests/testing/first_problem.h"
#include "tests/testing/simulated_engine.h"
#include "tests/testing/simulated_member.h"
#include "tests/testing/virtual_time.h"

namespace gyre::testing {

class ClusterWorld {
 public:
  explicit ClusterWorld(const ClusterPolicy& policy);

  static ClusterPolicy Policy(int layers, int min_workers);

  // Members come and go.
  SimulatedMember& Join(const std::string& name, MemberInfo info = {});
  SimulatedMember& JoinLocal(std::optional<LayerRange> preference = {}) {
    return Join("local", {.local = true, .preference = preference});
  }
  void Leave(const std::string& name, const std::string& why = "its connection ended");
  // The member is lost, but its process may live.
  void Silence(const std::string& name);
  // Its control stream ends, and another one replaces it.
  void Detach(const std::string& name);
  void Reattach(const std::string& name);
  // The member's process is found to be gone.
  void FindGone(const std::string& name);
  // Ends the previous stream.
  void EndOldStream(const std::string& name);
  void WantsToLeave(const std::string& name);
  // Removes processes that were dismissed.
  void LetDismissedGo();

  // Callers ask; each returns the number of its answer.
  uint64_t Resize(const std::string& text);
  uint64_t ResizeCache(uint64_t tokens);
  uint64_t Drain(const std::string& name);
  uint64_t Undrain(const std::string& name);
  uint64_t Remove(const std::string& name);
  uint64_t TakeProposed();
  // Asks what a resize would do. This must change nothing.
  StatusOr<ChangeReport> DryRun(const std::string& text, uint32_t live_blocks = 0);
  StatusOr<ChangeReport> DryDrain(const std::string& name);
  bool answered(uint64_t ask) const { return answers_.at(ask).has_value(); }
  StatusOr<ChangeReport> answer(uint64_t ask) const {
    return answers_.at(ask) ? *answers_.at(ask) : Internal("no answer");
  }

  // From now on this process measures its links, with the results in `links`.
  void CanProbe() { Do(state_.CanProbe(now())); }
  void Report(const std::string& name, const MemberLoad& load) { Do(Seen().Reported(name, load, now())); }
  // Breaks the ring as the engine does it: once per ring.
  void BreakRing();
  void Tick() { Do(state_.Ticked(now())); }
  // Lets time pass, with all events that are due in it.
  void Advance(Duration d);
  void After(Duration d, std::function<void()> what) { time_.After(d, std::move(what)); }

  // The visible state.
  const std::string& problem() const { return problem_.text(); }
  ClusterState& state() { return state_; }
  SimulatedMember& member(const std::string& name) { return *members_.at(name); }
  bool has(const std::string& name) const { return members_.count(name) > 0; }
  ClusterStatus status() const { return state_.status(now()); }
  std::string text() const { return status().state; }
  std::string ranges() const;
  Deadline now() const { return time_.now(); }
  const std::vector<std::string>& log() const { return log_; }
  bool logged(const std::string& part) const;

  SimulatedEngine engine;
  std::vector<PlanRecord> records;
  std::vector<ClusterEvent> events;
  std::optional<ClusterRecord> record;     // that was kept last
  std::map<std::string, LinkSpeed> links;  // from this process
  RingProgress progress;                   // what the engine says beside a report, a loss, a ring that breaks
  std::vector<Plan> begun;                 // plans that were wired
  std::vector<Epoch> cancelled;
  uint32_t num_blocks = 0;                               // of the last Prepare that gave layers
  std::vector<std::string> life_checks;                  // workers that were looked for
  std::vector<std::string> probes;                       // members that were asked to measure links; "": this process
  Duration first_report = std::chrono::milliseconds(1);  // after a member has joined, where speeds are measured
  bool may_forget = false;                               // members that did not come back, or are stuck
  std::vector<std::string> forgotten;                    // those that this happened to
  Status wiring_fault;                                   // of the coordinator's own links

 private:
  void Wrong(const std::string& what) { problem_.Found(what); }
  void Check(const Status& status) { problem_.Check(status); }
  uint64_t Asked();
  ClusterState& Seen() {
    state_.SeeRing(progress);
    return state_;
  }
  Membership Of(const std::string& name) const { return {name, members_.at(name)->id}; }

  // What the state decides (cluster_world_actions.cc).
  void Do(ClusterState::Actions actions);
  void Dry(ClusterState::Actions actions);
  // Delivers an event of a member later, unless it is silent or has left by then.
  void Say(const std::shared_ptr<SimulatedMember>& m, Epoch epoch, StageAnswer what);
  std::shared_ptr<SimulatedMember> Find(uint64_t id);
  void CheckSources(const PrepareRequest& request);
  void CheckRoom(const SimulatedMember& m, const PrepareRequest& request);
  void MaybeConnect(const Plan& plan);
  void Play(TellMember& a);
  void Play(DismissMember& a);
  void Prepare(const std::shared_ptr<SimulatedMember>& m, const PrepareRequest& request);
  void Play(ForgetMember& a);
  void Play(WireEnds& a);
  void Play(CancelWiring& a);
  void Play(DrainEngine& a);
  void Play(RestoreCache& a);
  void Play(ResumeOldRing& a) { Check(engine.Take(a, now())); }
  void Play(ResumeNewRing& a);
  void Play(EndRing& a);
  void Play(GrowCache& a);
  void Play(ShrinkCache& a) { engine.Take(a); }
  void Play(RefuseRequests& a) { Check(engine.Take(a)); }
  void Play(AwaitRing& a) { Check(engine.Take(a)); }
  void Play(AnswerCaller& a);
  void Play(RecordPlan& a) { records.push_back(a.record); }
  void Play(RecordEvent& a) { events.push_back(a.event); }
  void Play(KeepRecord& a) { record = a.record; }
  void Play(WriteLog& a);
  void Play(ShowProgress&) {}
  void Play(CheckLife& a) { life_checks.push_back(a.worker); }
  void Play(ProbeLinks& a);
  void Play(ProbeFromHere& a);
  void CheckEngine();

  const ClusterPolicy policy_;
  ClusterState state_;
  VirtualTime time_;
  std::map<std::string, std::shared_ptr<SimulatedMember>> members_;
  std::map<uint64_t, std::optional<StatusOr<ChangeReport>>> answers_;
  std::vector<std::string> log_;
  uint64_t next_id_ = 1, next_ask_ = 1;
  FirstProblem problem_;
  std::set<std::pair<uint64_t, uint64_t>> used_;  // epochs, by members that prepared them
  std::set<uint64_t> epochs_, drop_epochs_;
  std::optional<Epoch> wiring_;  // of the change that is under way
  bool wired_ = false;
};

inline std::vector<std::string> KindsOf(const std::vector<ClusterEvent>& events) {
  std::vector<std::string> out;
  for (const ClusterEvent& e : events) out.emplace_back(EventKindName(e.kind));
  return out;
}

}  // namespace gyre::testing
