// What ClusterState decides: commands to members, to the engine and to those who watch. Plain data.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/stage_control.h"
#include "coordinator/cluster/cluster_types.h"

namespace gyre {

// Actions, to be done in the order in which they are given. `member` is a Membership's id.
struct TellMember {
  uint64_t member = 0;
  Change change;
};
// StageControl::Dismiss.
struct DismissMember {
  uint64_t member = 0;
};
// The worker is no longer a member: its name is free, and its events are ignored.
struct ForgetMember {
  Membership member;
};
// Make the coordinator's two links of the plan, and report to Wired.
struct WireEnds {
  Plan plan;
};
struct CancelWiring {
  Epoch epoch;
};
// Engine::Drain, and report to Drained.
struct DrainEngine {
  Epoch epoch;
};
// Engine::Restore, and report to Drained.
struct RestoreCache {
  Epoch epoch;
  std::optional<uint64_t> step;  // as Engine::Restore says
};
struct ResumeOldRing {};
// Engine::Resume over the links that WireEnds made.
struct ResumeNewRing {
  Epoch epoch;
  uint32_t stages = 1;
  bool prefill_matches_decode = true;
  uint64_t cache_namespace = 0;
  bool own_member = false;  // the coordinator's own member has layers
  bool restores = false;    // as Ring says, and the next two
  std::vector<BlockId> missing;
  uint64_t step_floor = 0;
};
// Engine::Shrink.
struct ShrinkCache {
  uint32_t num_blocks = 0;
  bool whole = false;  // this is the cache's capacity from now on, which may be larger
};
// Engine::BreakRing, and report to RingBroken.
struct EndRing {
  Epoch epoch;
  Status why;
};
// Engine::Grow.
struct GrowCache {
  uint32_t num_blocks = 0;
};
// Engine::Lose: there is no plan yet, so requests are refused with `why`.
struct RefuseRequests {
  Status why;
};
// Engine::Await: a plan that served is lost, so requests wait for the next one and are told `why`.
struct AwaitRing {
  Status why;
  bool crashed = false;     // a process of the ring died, perhaps of what was in flight
  bool replicated = false;  // the next plan may restore the cache
  Deadline since{};         // since when the ring has given no results
};
struct AnswerCaller {
  uint64_t ask = 0;
  StatusOr<ChangeReport> answer;
};
// For the history. The record's wall-clock time is not set.
struct RecordPlan {
  PlanRecord record;
};
// For the list of events. Number and time are not set.
struct RecordEvent {
  ClusterEvent event;
};
struct WriteLog {
  LogLevel level = LogLevel::kInfo;
  std::string line;
};
// To be known when the coordinator is started again.
struct KeepRecord {
  ClusterRecord record;
};
// The member's links to these are to be measured.
struct ProbeLinks {
  uint64_t member = 0;
  std::vector<WeightSource> peers;
};
// This process's links to these are to be measured, by the function of Cluster::SetProber; report to Probed.
struct ProbeFromHere {
  std::vector<WeightSource> peers;
};
// Look whether the process that listened there is gone, and report to FoundGone. `member`: 0 = it is a worker of the
// coordinator's predecessor.
struct CheckLife {
  uint64_t member = 0;
  std::string worker;
  std::string address;  // a ring address
};
// Weights that are loaded for the plan that is being made.
struct ShowProgress {
  StageProgress loaded;
};
using ClusterAction =
    std::variant<TellMember, DismissMember, ForgetMember, WireEnds, CancelWiring, DrainEngine, RestoreCache,
                 ResumeOldRing, ResumeNewRing, ShrinkCache, GrowCache, EndRing, RefuseRequests, AwaitRing, AnswerCaller,
                 RecordPlan, RecordEvent, KeepRecord, WriteLog, ShowProgress, ProbeLinks, ProbeFromHere, CheckLife>;

inline ClusterEvent DrainedEvent(const std::string& member, bool had_layers) {
  return {.kind = EventKind::kDrained,
          .member = member,
          .text = fmt::format("{} is drained{}, and gets no layers before an undrain", member,
                              had_layers ? ": its layers went to others" : "")};
}

// The actions of the event that is being handled, in their order. Not thread-safe.
class ActionList {
 public:
  template <typename T>
  void Do(T action) {
    actions_.push_back(std::move(action));
  }
  void Log(LogLevel level, std::string line) { Do(WriteLog{level, std::move(line)}); }
  // For the list of events, and a log line.
  void Happened(LogLevel level, ClusterEvent event) {
    Log(level, event.text);
    Do(RecordEvent{std::move(event)});
  }
  void Record(PlanRecord record, const Plan& plan) {
    record.number = plan.epoch.number;
    record.ranges = FormatNamedRanges(plan);
    Do(RecordPlan{std::move(record)});
  }
  // `ask`: 0 = nobody asked.
  void Answer(uint64_t ask, StatusOr<ChangeReport> answer) {
    if (ask != 0) Do(AnswerCaller{ask, std::move(answer)});
  }
  std::vector<ClusterAction> Take() { return std::exchange(actions_, {}); }

 private:
  std::vector<ClusterAction> actions_;
};

}  // namespace gyre
