// The transaction on a simulated clock: every participant dies, stalls or answers late at every step.
#include "coordinator/cluster/plan_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/testing/virtual_time.h"
#include "tests/testing/worlds.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr Epoch kEpoch{.term = 7, .number = 2};
const Deadline kStart = Deadline{} + std::chrono::hours(1);

// What an action is: a verb for a member, or one for the engine.
enum class Kind : uint8_t { kPrepare = 1, kMove, kCommit, kRelease, kAbort, kDrainEngine, kResumeOld, kResumeNew };
static_assert(static_cast<int>(Kind::kAbort) == static_cast<int>(kLastChangeVerb));
Kind KindOf(const ChangeAction& a) {
  switch (a.kind) {
    case ChangeAction::kTell: return static_cast<Kind>(a.verb);
    case ChangeAction::kDrainEngine: return Kind::kDrainEngine;
    case ChangeAction::kResumeOld: return Kind::kResumeOld;
    case ChangeAction::kResumeNew: return Kind::kResumeNew;
  }
  return {};
}

StageDone Done(ChangeVerb verb) { return {.verb = verb}; }

// a: from the old plan into the new; b: only in the old; c: new, and pulls pages.
std::vector<Participant> Three() {
  return {{.worker = "a", .in_old = true, .stage = 0, .copies = false},
          {.worker = "b", .in_old = true, .stage = -1, .copies = false},
          {.worker = "c", .in_old = false, .stage = 1, .copies = true}};
}

// The rest of the world: participants that answer at once unless they are told otherwise, an engine, a clock.
class World {
 public:
  explicit World(bool engine_runs = true) : change_(kEpoch, Three(), engine_runs, {}) {}

  void Run() {
    Do(change_.Start(now()));
    Pump();
  }
  // Until nothing happens any more without time passing.
  void Pump() { time_.DoDue(); }
  void Elapse(Duration d) {
    time_.PassTo(now() + d);
    Do(change_.OnTick(now()));
    Pump();
  }
  void Say(const std::string& worker, decltype(StageEvent::what) what, Epoch epoch = kEpoch) {
    Do(change_.OnEvent({.worker = worker, .epoch = epoch, .what = std::move(what)}, now()));
    Pump();
  }
  void Lose(const std::string& worker) {
    Do(change_.OnLost(worker, Unavailable("{} died", worker), now()));
    Pump();
  }
  void BreakRing() {
    Do(change_.OnRingBroken(Unavailable("a link ended")));
    Pump();
  }

  // A worker's action in place of the answer to `kind`.
  std::map<std::pair<std::string, Kind>, std::function<void()>> instead;
  bool engine_drains = true, links_come = true;
  Status links = absl::OkStatus();

  PlanChange& change() { return change_; }
  int count(const std::string& worker, Kind kind) const {
    const auto it = sent_.find({worker, kind});
    return it == sent_.end() ? 0 : it->second;
  }
  std::vector<BlockId> moved_blocks;

 private:
  Deadline now() const { return time_.now(); }
  void Do(const PlanChange::Actions& actions) {
    for (const ChangeAction& a : actions) {
      const Kind kind = KindOf(a);
      ++sent_[{a.worker, kind}];
      if (const auto it = instead.find({a.worker, kind}); it != instead.end()) {
        time_.After({}, it->second);
        continue;
      }
      const std::string w = a.worker;
      switch (kind) {
        case Kind::kPrepare:
          time_.After({}, [this, w] { Say(w, StageProgress{1, 2}); });
          time_.After({}, [this, w] { Say(w, Done(ChangeVerb::kPrepare)); });
          if (w == "a" && links_come) time_.After({}, [this] { Do(change_.OnWired(links, links, now())); });
          break;
        case Kind::kMove:
          moved_blocks = a.units.units;
          time_.After({}, [this, w] {
            Say(w, StageDone{.verb = ChangeVerb::kMove, .pages = 10, .bytes = 100, .last_pages = 2});
          });
          break;
        case Kind::kCommit: time_.After({}, [this, w] { Say(w, Done(ChangeVerb::kCommit)); }); break;
        case Kind::kAbort: time_.After({}, [this, w] { Say(w, Done(ChangeVerb::kAbort)); }); break;
        case Kind::kDrainEngine:
          if (engine_drains) time_.After({}, [this] { Do(change_.OnDrained({3, 4, 9}, now())); });
          break;
        default: break;
      }
    }
  }
  PlanChange change_;
  testing::VirtualTime time_{kStart};
  std::map<std::pair<std::string, Kind>, int> sent_;
};

TEST(PlanChangeTest, AGoodChangeGoesThroughAllStates) {
  World w;
  w.Run();
  EXPECT_EQ(w.change().state(), ChangeState::kDone);
  EXPECT_EQ(w.moved_blocks, (std::vector<BlockId>{3, 4, 9}));
  EXPECT_EQ(w.change().pages_moved(), 10u);
  EXPECT_EQ(w.count("c", Kind::kMove), 1);
  EXPECT_EQ(w.count("a", Kind::kMove), 0) << "it has nothing to copy";
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(w.count(name, Kind::kCommit), 1);
    EXPECT_EQ(w.count(name, Kind::kRelease), 1);
    EXPECT_EQ(w.count(name, Kind::kAbort), 0);
  }
  EXPECT_EQ(w.count("", Kind::kResumeNew), 1);
  EXPECT_EQ(w.count("", Kind::kResumeOld), 0);
}

TEST(PlanChangeTest, NoFrameOfTheNewPlanBeforeEveryParticipantCommitted) {
  for (const char* late : {"a", "b", "c"}) {
    World w;
    w.instead[{late, Kind::kCommit}] = [] {};
    w.Run();
    EXPECT_EQ(w.change().state(), ChangeState::kCommitting);
    EXPECT_EQ(w.count("", Kind::kResumeNew), 0);
    w.Say(late, Done(ChangeVerb::kCommit));
    EXPECT_EQ(w.count("", Kind::kResumeNew), 1);
    w.Say(late, Done(ChangeVerb::kCommit));  // twice is once
    EXPECT_EQ(w.count("", Kind::kResumeNew), 1);
  }
}

// Each way to fail, at each command, for each worker: before the decision the old plan goes on, whole.
TEST(PlanChangeTest, EveryFailureBeforeTheDecisionAborts) {
  enum How { kDies, kStalls, kFaults };
  for (How how : {kDies, kStalls, kFaults}) {
    for (auto [worker, kind] :
         {std::pair{"a", Kind::kPrepare}, {"b", Kind::kPrepare}, {"c", Kind::kPrepare}, {"c", Kind::kMove}}) {
      SCOPED_TRACE(fmt::format("{} {} {}", static_cast<int>(how), worker, static_cast<int>(kind)));
      World w;
      const std::string name = worker;
      w.instead[{name, kind}] = [&w, how, name] {
        if (how == kDies) w.Lose(name);
        if (how == kFaults) w.Say(name, StageFault{ResourceExhausted("no memory")});
      };
      w.Run();
      if (kind == Kind::kPrepare && name == "a") {  // its wiring was left out with it
        if (how == kStalls) EXPECT_EQ(w.change().state(), ChangeState::kPreparing);
      }
      if (how == kStalls) {
        EXPECT_FALSE(w.change().over());
        w.Elapse(seconds(59));
        EXPECT_FALSE(w.change().over());
        w.Elapse(seconds(121));
        EXPECT_THAT(Message(w.change().status()), HasSubstr(name));
      }
      EXPECT_EQ(w.change().state(), ChangeState::kAborted);
      EXPECT_FALSE(w.change().decided());
      EXPECT_EQ(w.count("", Kind::kResumeNew), 0);
      EXPECT_EQ(w.count("", Kind::kResumeOld), kind == Kind::kMove ? 1 : 0) << "only what was stopped goes on again";
      EXPECT_EQ(w.change().culprit(), name);
      for (const char* p : {"a", "b", "c"}) {
        EXPECT_EQ(w.count(p, Kind::kAbort), 1);
        EXPECT_EQ(w.count(p, Kind::kCommit), 0);
      }
      // A late answer changes nothing.
      w.Say(name, Done(ChangeVerb::kPrepare));
      w.Say(name, Done(ChangeVerb::kMove));
      w.Say(name, Done(ChangeVerb::kCommit));
      w.Elapse(seconds(1000));
      EXPECT_EQ(w.change().state(), ChangeState::kAborted);
    }
  }
}

TEST(PlanChangeTest, AfterTheDecisionALossIsAFaultUnlessItHasNoLayers) {
  for (const char* worker : {"a", "b", "c"}) {
    World w;
    const std::string name = worker;
    w.instead[{name, Kind::kCommit}] = [&w, name] { w.Lose(name); };
    w.Run();
    EXPECT_EQ(w.change().state(), name == "b" ? ChangeState::kDone : ChangeState::kFaulted) << name;
    for (const char* p : {"a", "b", "c"}) EXPECT_EQ(w.count(p, Kind::kAbort), 0);
  }
  World w;
  w.instead[{"c", Kind::kCommit}] = [] {};
  w.Run();
  w.Elapse(seconds(11));
  EXPECT_EQ(w.change().state(), ChangeState::kFaulted);
  EXPECT_THAT(Message(w.change().status()), HasSubstr("c"));
}

TEST(PlanChangeTest, ADrainThatDoesNotEndAbortsAndSaysSo) {
  World w;
  w.engine_drains = false;
  w.Run();
  EXPECT_EQ(w.change().state(), ChangeState::kDraining);
  w.Elapse(seconds(61));
  EXPECT_EQ(w.change().state(), ChangeState::kAborted);
  EXPECT_TRUE(w.change().drain_expired());
  EXPECT_EQ(w.count("", Kind::kResumeOld), 0) << "a step of the old ring is lost: it must not go on";
  EXPECT_EQ(w.change().culprit(), "");
}

TEST(PlanChangeTest, ABrokenRingDoesNotGoOn) {
  World w;
  w.instead[{"c", Kind::kMove}] = [&w] { w.BreakRing(); };
  w.Run();
  EXPECT_EQ(w.change().state(), ChangeState::kAborted);
  EXPECT_EQ(w.count("", Kind::kResumeOld), 0);
  // After the decision the old ring is not needed.
  World late;
  late.instead[{"c", Kind::kCommit}] = [&late] { late.BreakRing(); };
  late.Run();
  late.Say("c", Done(ChangeVerb::kCommit));
  EXPECT_EQ(late.change().state(), ChangeState::kDone);
}

TEST(PlanChangeTest, AMemberThatTakesNoPartIsNoLoss) {
  for (Kind when : {Kind::kPrepare, Kind::kMove, Kind::kCommit}) {
    World w;
    w.instead[{"c", when}] = [&w] { w.Lose("zoe"); };
    w.Run();
    EXPECT_FALSE(w.change().over());
    w.Say("c", Done(ChangeVerb::kPrepare));
    w.Say("c", Done(ChangeVerb::kMove));
    w.Say("c", Done(ChangeVerb::kCommit));
    EXPECT_EQ(w.change().state(), ChangeState::kDone);
  }
}

// One that only has to give layers up is not waited for when the others serve already.
TEST(PlanChangeTest, ACommitThatOnlyTheOldOwnerMissesIsDone) {
  for (bool faults : {false, true}) {
    World w;
    w.instead[{"b", Kind::kCommit}] = [&w, faults] {
      if (faults) w.Say("b", StageFault{Internal("stuck")});
    };
    w.Run();
    w.Elapse(seconds(11));
    EXPECT_EQ(w.change().state(), ChangeState::kDone);
    EXPECT_FALSE(w.change().committed("b"));
    EXPECT_TRUE(w.change().committed("c"));
  }
}

// A stage that no drain has stopped may be in the middle of a long step.
TEST(PlanChangeTest, WithoutADrainACommitMayTakeAStep) {
  World w(false);
  w.instead[{"c", Kind::kCommit}] = [] {};
  w.Run();
  w.Elapse(seconds(50));
  EXPECT_EQ(w.change().state(), ChangeState::kCommitting);
  w.Elapse(seconds(21));
  EXPECT_EQ(w.change().state(), ChangeState::kFaulted);
  EXPECT_EQ(w.change().culprit(), "c");
}

// The ring fails from a link upwards, and whoever is quickest speaks first. The link farthest down is the cause.
TEST(PlanChangeTest, AFaultOfALinkIsItsReceivers) {
  const Status closed = Unavailable("{}: hop 1 of plan 2: the peer closed it", kLinkToNextStage);
  const Status unreachable = Unavailable("{}: 10.0.0.9:1: Connection refused", kLinkToNextStage);
  World w;
  w.links_come = false;
  for (const char* name : {"a", "c"}) w.instead[{name, Kind::kPrepare}] = [] {};
  w.Run();
  w.Say("a", StageFault{unreachable});
  EXPECT_FALSE(w.change().over()) << "somebody farther down may have more to say";
  w.Elapse(seconds(1));
  EXPECT_EQ(w.change().state(), ChangeState::kAborted);
  EXPECT_EQ(w.change().culprit(), "c");
  EXPECT_EQ(Message(w.change().status()), "the link from a to c failed: 10.0.0.9:1: Connection refused");

  World up;
  up.links_come = false;
  for (const char* name : {"a", "c"}) up.instead[{name, Kind::kPrepare}] = [] {};
  up.Run();
  up.Say("a", StageFault{closed});
  up.Say("c", StageFault{unreachable});
  up.Elapse(seconds(1));
  EXPECT_EQ(up.change().culprit(), "c") << "it can't reach the coordinator";
  EXPECT_THAT(Message(up.change().status()), HasSubstr("the link from c to the coordinator failed: 10.0.0.9"));

  // A fault that is no link's says more than one that is.
  World memory;
  memory.links_come = false;
  for (const char* name : {"a", "c"}) memory.instead[{name, Kind::kPrepare}] = [] {};
  memory.Run();
  memory.Say("c", StageFault{unreachable});
  memory.Say("a", StageFault{ResourceExhausted("no memory")});
  EXPECT_EQ(memory.change().culprit(), "a");
  EXPECT_EQ(Message(memory.change().status()), "a: no memory");
}

// SYNs that are dropped: both ends of the link wait.
TEST(PlanChangeTest, ALinkThatNeverComesIsItsReceiversToo) {
  World w;
  w.links_come = false;
  for (const char* name : {"a", "c"}) w.instead[{name, Kind::kPrepare}] = [] {};
  w.Run();
  w.Elapse(seconds(121));
  EXPECT_EQ(w.change().state(), ChangeState::kAborted);
  EXPECT_EQ(w.change().culprit(), "c");
}

// A disk that hangs, say: the neighbors have loaded and wait for its links.
TEST(PlanChangeTest, OneThatDoesNotLoadIsAtFaultForItsNeighborsSilence) {
  for (const char* stuck : {"a", "c"}) {
    for (bool begun : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", stuck, begun));
      World w;
      w.links_come = false;
      for (const char* name : {"a", "c"}) w.instead[{name, Kind::kPrepare}] = [] {};
      w.Run();
      if (begun) w.Say(stuck, StageProgress{1, 20});
      w.Say(stuck == std::string("a") ? "c" : "a", StageProgress{20, 20});
      w.Elapse(seconds(121));
      EXPECT_EQ(w.change().state(), ChangeState::kAborted);
      EXPECT_EQ(w.change().culprit(), stuck);
    }
  }
}

TEST(PlanChangeTest, ProgressKeepsASlowLoaderAlive) {
  World w;
  w.instead[{"c", Kind::kPrepare}] = [] {};
  w.Run();
  for (int i = 0; i < 20; ++i) {
    w.Elapse(seconds(100));
    EXPECT_FALSE(w.change().over());
    w.Say("c", StageProgress{static_cast<uint64_t>(i), 20});
  }
  w.Say("c", Done(ChangeVerb::kPrepare));
  EXPECT_EQ(w.change().state(), ChangeState::kDone);
}

TEST(PlanChangeTest, OtherEpochsAndUnauthenticatedPeersAreIgnored) {
  World w;
  w.instead[{"c", Kind::kPrepare}] = [] {};
  w.Run();
  for (Epoch other : {Epoch{7, 1}, Epoch{7, 3}, Epoch{6, 2}, Epoch{8, 2}}) {
    w.Say("c", Done(ChangeVerb::kPrepare), other);
    w.Say("c", StageFault{Internal("old")}, other);
    w.Say("a", Done(ChangeVerb::kCommit), other);
  }
  w.Say("zoe", Done(ChangeVerb::kPrepare));
  w.Say("zoe", StageFault{Internal("who")});
  EXPECT_EQ(w.change().state(), ChangeState::kPreparing);
  w.Say("c", Done(ChangeVerb::kPrepare));
  EXPECT_EQ(w.change().state(), ChangeState::kDone);
}

TEST(PlanChangeTest, WithoutAnEngineThereIsNothingToDrain) {
  World w(false);
  w.Run();
  EXPECT_EQ(w.change().state(), ChangeState::kDone);
  EXPECT_EQ(w.count("", Kind::kDrainEngine), 0);
  EXPECT_EQ(w.count("c", Kind::kMove), 0);
}

TEST(PlanChangeTest, LinksThatCanNotBeMadeAbort) {
  World w;
  w.links = Unavailable("no route");
  w.Run();
  w.Elapse(seconds(1));
  EXPECT_EQ(w.change().state(), ChangeState::kAborted);
  EXPECT_EQ(w.change().culprit(), "c");
  EXPECT_EQ(Message(w.change().status()), "the link from c to the coordinator failed: no route");

  World threads;  // what this process lacks is no worker's fault
  threads.links = Internal("too many open files");
  threads.Run();
  threads.Elapse(seconds(1));
  EXPECT_EQ(threads.change().state(), ChangeState::kAborted);
  EXPECT_EQ(threads.change().culprit(), "");
  EXPECT_EQ(Message(threads.change().status()), "too many open files");

  World descriptors;
  descriptors.links_come = false;
  for (const char* name : {"a", "c"}) descriptors.instead[{name, Kind::kPrepare}] = [] {};
  descriptors.Run();
  descriptors.Say("a", StageFault{ResourceExhausted("{}: too many open files", kLinkToNextStage)});
  descriptors.Elapse(seconds(1));
  EXPECT_EQ(descriptors.change().culprit(), "a");
}

// Random orders of everything: one end, reached at most once, and never both plans at once.
TEST(PlanChangeTest, RandomEventsEndInTheOldOrTheNewPlan) {
  int ends[3] = {};
  const auto play = [&ends](uint64_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    World w(random() % 4 != 0);
    w.engine_drains = random() % 10 != 0;
    const char* names[] = {"a", "b", "c"};
    const Kind kinds[] = {Kind::kPrepare, Kind::kMove, Kind::kCommit};
    if (random() % 3 != 0) {
      const std::string name = names[random() % 3];
      const uint32_t what = random() % 5;
      w.instead[{name, kinds[random() % 3]}] = [&w, name, what] {
        if (what == 0) w.Lose(name);
        if (what == 1) w.Say(name, StageFault{Internal("x")});
        if (what == 2) w.Say(name, Done(ChangeVerb::kCommit));
        if (what == 3) w.Elapse(seconds(30));
      };
    }
    w.Run();
    for (int i = 0; i < 30 && !w.change().over(); ++i) {
      const std::string name = names[random() % 3];
      switch (random() % 6) {
        case 0: w.Say(name, Done(ChangeVerb::kPrepare)); break;
        case 1: w.Say(name, Done(ChangeVerb::kMove)); break;
        case 2: w.Say(name, Done(ChangeVerb::kCommit)); break;
        case 3: w.Elapse(seconds(random() % 50)); break;
        case 4: w.Say(name, StageProgress{1, 1}); break;
        default: break;
      }
    }
    w.Elapse(seconds(500));
    ASSERT_TRUE(w.change().over());
    const bool resumed = w.count("", Kind::kResumeNew) > 0;
    EXPECT_EQ(resumed, w.change().state() == ChangeState::kDone);
    EXPECT_LE(w.count("", Kind::kResumeNew) + w.count("", Kind::kResumeOld), 1);
    if (w.change().state() == ChangeState::kAborted) {
      for (const char* p : names) EXPECT_EQ(w.count(p, Kind::kCommit), 0);
    }
    ++ends[w.change().state() == ChangeState::kDone ? 0 : w.change().state() == ChangeState::kAborted ? 1 : 2];
  };
  if (!testing::PlayWorlds({.count = 5000, .first = 0}, play)) return;
  for (int n : ends) EXPECT_GT(n, 50);
}

}  // namespace
}  // namespace gyre
