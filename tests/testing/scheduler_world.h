// A simulated world for a Scheduler: callers with their sequences, steps in flight, a stage and its replica. It finds
// violations.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engine/scheduler.h"
#include "tests/testing/draw.h"
#include "tests/testing/first_problem.h"
#include "tests/testing/plan_checks.h"
#include "tests/testing/simulated_replica.h"
#include "tests/testing/simulated_stage.h"
#include "tests/testing/tracked_sequence.h"

namespace gyre::testing {

struct WorldOptions {
  SchedulerOptions scheduler;
  uint64_t seed = 0;
  double error_rate = 0;                        // of steps
  double repeat_rate = 0;                       // of answers that get lost
  int hold_percent = 0;                         // of events: a sequence is held, or goes on
  int ring_percent = 0;                         // of events: another ring comes, after a broken one or not
  int replica_percent = 0;                      // of events: a replica copies some units; lost members are restored
  double draft_rate = 0;                        // of tokens: drafts follow, right or wrong
  double shift_rate = 0;                        // of full contexts: the sequence goes on with a part of its tokens
  int restart_percent = 0;                      // of events: another scheduler takes over with an index that lags
  bool trusts_index = false;                    // plants a bug: the members' stamps are not asked
  bool trusts_replica = false;                  // plants a bug: what is cached is not compared with the replica
  std::function<void(StepPlan*)> corrupt = {};  // plants a bug between the scheduler and the stages
};

class SchedulerWorld {
 public:
  explicit SchedulerWorld(WorldOptions options);

  void RandomEvent();
  // Without new sequences and errors all sequences finish, and every block is freed.
  void LeaveAlone();

  // The first violation; empty: none.
  const std::string& problem() const { return problem_.text(); }
  SchedulerStats stats() const { return scheduler_.stats(); }
  uint64_t most_windowed() const { return checks_.most_windowed(); }

  // How often something happened.
  uint64_t events() const { return events_; }
  uint64_t holds() const { return holds_; }
  uint64_t shifts() const { return shifts_; }
  uint64_t refused() const { return refused_; }  // steps, for rows that do not go on where a slot is
  uint64_t failed() const { return failed_; }    // sequences, by errors
  uint64_t lost() const { return lost_; }        // sequences that failed with three rings
  // Items behind drafts that were in flight, which counted in the end, or not; steps that a stage left out.
  uint64_t gone_on() const { return gone_on_; }
  uint64_t gone_on_void() const { return void_; }
  uint64_t left_out() const { return left_out_; }
  uint64_t members_lost() const { return members_lost_; }
  uint64_t restores() const { return restores_; }  // lost members
  uint64_t restored() const { return restored_; }  // units, in all of them
  uint64_t take_overs() const { return take_overs_; }
  uint64_t taken_over() const { return taken_over_; }  // units, in all of them
  uint64_t stale() const { return stale_; }            // likewise: those that were written since

 private:
  // What callers do.
  void Add();
  bool AnswerOne();
  // The token that a sequence draws when it has so many.
  static TokenId Drawn(SeqId id, size_t tokens);
  void Propose(SeqId id);
  void Shift(SeqId id, TokenId token);
  void Hold(SeqId id);
  void Remove(SeqId id);
  SeqId PickLive();
  // Steps.
  bool Next();
  void ExecuteNext();
  void Land();
  void TakePreemptions();
  void TakeAdmissions();
  TrackedSequence* Current(const StepItem& item);
  // A draft before the rows was not drawn.
  bool IsVoid(const StepInFlight::Rows& rows);
  // Rings, members and schedulers that come and go.
  void ChangeRing();
  void LosePages();
  void LoseMember();
  void Restore();
  void KeepIndex();
  void TakeOver();
  void LoseStaleUnits();
  void SetRing();

  void EndEvent();
  void Check(const Status& status) {
    if (!status.ok()) Fail("{}", Message(status));
  }
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    problem_.Found(fmt::format("event {}: ", events_) + fmt::format(format, std::forward<Args>(args)...));
  }
  int Between(int low, int high) { return testing::Between(random_, low, high); }
  bool Chance(double p) { return testing::Chance(random_, p); }

  WorldOptions options_;
  const SchedulerOptions o_;
  Scheduler scheduler_;
  RandomBits random_;
  PlanChecks checks_;
  SimulatedStage stage_;
  SimulatedReplica replica_;
  PlanChecks::Sequences live_;
  PlanChecks::Flights flights_;
  size_t executed_ = 0;  // of flights_, from the front
  uint64_t next_id_ = 1;
  uint64_t ring_namespace_ = 0;
  std::map<std::pair<int, uint32_t>, CachedUnit> index_;  // as it is stored
  uint64_t events_ = 0, holds_ = 0, shifts_ = 0, lost_ = 0, failed_ = 0, members_lost_ = 0, refused_ = 0;
  uint64_t gone_on_ = 0, void_ = 0, left_out_ = 0;
  uint64_t restores_ = 0, restored_ = 0, take_overs_ = 0, taken_over_ = 0, stale_ = 0;
  FirstProblem problem_;
};

}  // namespace gyre::testing
