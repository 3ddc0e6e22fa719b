// Control connections that are cut, workers that leave on purpose, and those that are stuck.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/cluster/cluster_state.h"
#include "tests/testing/serving_cluster.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ClusterWorld;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Calls = std::vector<std::string>;

class ClusterDetachTest : public testing::ServingClusterTest {
 protected:
  ClusterWorld& Serving(int workers, MemberInfo info = {}) {
    ClusterWorld& w = ServingClusterTest::Serving(workers, info);
    w.may_forget = true;
    return w;
  }
};

TEST_F(ClusterDetachTest, ACutControlConnectionCostsNothingIfItComesBack) {
  ClusterWorld& w = Serving(2);
  w.Detach("w1");
  EXPECT_TRUE(w.status().members[0].detached);
  w.Advance(milliseconds(1400));
  w.events.clear();
  w.Reattach("w1");
  EXPECT_THAT(testing::KindsOf(w.events), ElementsAre("cut", "back"));
  w.EndOldStream("w1");
  w.Advance(seconds(100));
  EXPECT_THAT(w.engine.calls, IsEmpty());
  EXPECT_THAT(w.forgotten, IsEmpty());
  EXPECT_FALSE(w.status().members[0].detached);
}

TEST_F(ClusterDetachTest, OneThatDoesNotComeBackIsDead) {
  ClusterWorld& w = Serving(2);
  w.Detach("w1");
  w.Advance(milliseconds(1499));
  EXPECT_THAT(w.engine.calls, IsEmpty());
  w.Advance(milliseconds(2));
  EXPECT_THAT(w.forgotten, ElementsAre("w1"));
  EXPECT_EQ(Message(w.engine.losses[0]), "worker w1 with layers 0-3 is gone: its stream ended");
  EXPECT_TRUE(w.engine.crashed);
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w2=0-7");
}

// Its machine refuses connections to its port.
TEST_F(ClusterDetachTest, AProcessThatIsGoneIsNotWaitedFor) {
  for (const bool ring_first : {false, true}) {
    ClusterWorld& w = Serving(2);
    w.events.clear();
    if (ring_first) w.BreakRing();
    w.Detach("w1");
    EXPECT_THAT(w.life_checks, ElementsAre("w1"));
    if (!ring_first) w.BreakRing();
    w.Advance(milliseconds(20));
    w.FindGone("w1");
    EXPECT_THAT(w.forgotten, ElementsAre("w1"));
    EXPECT_EQ(Message(w.engine.losses[0]),
              "worker w1 with layers 0-3 is gone: its process has ended (its stream ended)");
    EXPECT_TRUE(w.engine.crashed);
    w.Advance(milliseconds(100));
    EXPECT_EQ(w.text(), "serving");
    EXPECT_EQ(w.ranges(), "w2=0-7");
    EXPECT_THAT(testing::KindsOf(w.events), ElementsAre("lost", "recovered")) << "one event tells of a loss";
  }
}

TEST_F(ClusterDetachTest, WhoIsBackIsNotGone) {
  ClusterWorld& w = Serving(2);
  w.Detach("w1");
  w.Reattach("w1");
  w.FindGone("w1");
  w.Advance(seconds(10));
  EXPECT_THAT(w.forgotten, IsEmpty());
  EXPECT_THAT(w.engine.calls, IsEmpty());
}

// A process that dies closes both.
TEST_F(ClusterDetachTest, WithABrokenRingItIsDeadWhenTheRepairWouldBegin) {
  for (const bool ring_first : {false, true}) {
    ClusterWorld& w = Serving(2);
    if (ring_first) w.BreakRing();
    w.Detach("w2");
    if (!ring_first) w.BreakRing();
    w.Advance(milliseconds(499));
    EXPECT_THAT(w.forgotten, IsEmpty());
    w.Advance(milliseconds(2));
    EXPECT_THAT(w.forgotten, ElementsAre("w2"));
    w.Advance(seconds(1));
    EXPECT_EQ(w.engine.calls[0], "await");
    EXPECT_EQ(w.engine.calls.back(), "new 2");
    EXPECT_EQ(w.ranges(), "w1=0-7");
  }
}

// A switch that resets all connections at once.
TEST_F(ClusterDetachTest, WhoIsBackByThenGetsARepair) {
  ClusterWorld& w = Serving(3);
  w.BreakRing();
  for (const char* name : {"w1", "w2", "w3"}) w.Detach(name);
  w.Advance(milliseconds(300));
  for (const char* name : {"w1", "w2", "w3"}) w.Reattach(name);
  w.Advance(seconds(1));
  EXPECT_EQ(w.engine.calls, (Calls{"new 2"}));
  EXPECT_EQ(w.status().lost, 0u);
}

TEST_F(ClusterDetachTest, AMemberWithoutLayersJustLeaves) {
  ClusterWorld& w = Serving(2);
  w.Join("idle");
  w.Detach("idle");
  EXPECT_THAT(w.forgotten, ElementsAre("idle"));
  EXPECT_THAT(w.engine.calls, IsEmpty());
}

// It takes part in a plan change, whose commands reach it when it is back.
TEST_F(ClusterDetachTest, APlanChangeWaitsForOneThatIsDetached) {
  ClusterWorld& w = Serving(2);
  w.Join("w3").delay = milliseconds(200);
  const uint64_t ask = w.Resize("w1=0-1,w2=2-3,w3=4-7");
  w.Detach("w3");
  w.Advance(milliseconds(150));
  w.Reattach("w3");
  w.Advance(seconds(2));
  EXPECT_TRUE(w.answer(ask).ok()) << w.answer(ask).status();
  EXPECT_EQ(w.ranges(), "w1=0-1,w2=2-3,w3=4-7");
}

TEST_F(ClusterDetachTest, WhoLeavesGivesItsLayersAwayAndIsDismissed) {
  ClusterWorld& w = Serving(3);
  w.WantsToLeave("w2");
  EXPECT_TRUE(w.status().members[1].leaving);
  EXPECT_FALSE(w.member("w2").dismissed);
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_EQ(w.engine.calls, (Calls{"drain", "new 2"}));
  EXPECT_TRUE(w.member("w2").dismissed);
  w.LetDismissedGo();
  w.Advance(seconds(1));
  EXPECT_EQ(w.status().lost, 0u);
  // No mark stays on the name.
  w.Join("w2");
  EXPECT_FALSE(w.status().members[2].drained);
  EXPECT_TRUE(w.answered(w.Resize("w1=0-1,w2=2-3,w3=4-7")) == false);
  w.Advance(seconds(1));
  EXPECT_THAT(w.ranges(), HasSubstr("w2"));
}

TEST_F(ClusterDetachTest, AllThatLeaveGoInOneChangeAndGetNoneOfEachOther) {
  ClusterWorld& w = Serving(4);
  for (const char* name : {"w1", "w2", "w3"}) w.WantsToLeave(name);
  w.Advance(seconds(3));
  EXPECT_EQ(w.ranges(), "w4=0-7");
  EXPECT_LE(w.begun.size(), 2u) << "the first began before the others spoke";
  for (const char* name : {"w1", "w2", "w3"}) EXPECT_TRUE(w.member(name).dismissed) << name;
}

TEST_F(ClusterDetachTest, ALeaveWaitsForThePlanThatIsBeingMade) {
  ClusterWorld& w = Serving(3);
  const uint64_t ask = w.Resize("w3=0-3,w1=4-5,w2=6-7");
  w.WantsToLeave("w2");
  w.Advance(seconds(2));
  EXPECT_TRUE(w.answer(ask).ok());
  EXPECT_TRUE(w.member("w2").dismissed);
  EXPECT_THAT(w.ranges(), Not(HasSubstr("w2")));
  // A loss in the middle does not end it either.
  ClusterWorld& again = Serving(3);
  again.WantsToLeave("w2");
  again.Advance(milliseconds(5));
  again.Leave("w3");
  again.Advance(seconds(5));
  EXPECT_EQ(again.ranges(), "w1=0-7");
  EXPECT_TRUE(again.member("w2").dismissed);
}

// It takes them with it, and nobody is blamed.
TEST_F(ClusterDetachTest, WhereNobodyCanTakeItsLayersItIsDismissedAtOnce) {
  ClusterWorld& w = Serving(2, {.memory = 700});
  w.WantsToLeave("w2");
  w.Advance(seconds(1));
  EXPECT_TRUE(w.member("w2").dismissed);
  EXPECT_TRUE(w.logged("w2 leaves with its layers: w1 needs"));
  w.LetDismissedGo();
  EXPECT_FALSE(w.engine.crashed);
  EXPECT_THAT(w.text(), HasSubstr("requests wait for a worker"));
}

TEST_F(ClusterDetachTest, RemoveAnswersWhenTheWorkerIsDismissed) {
  ClusterWorld& w = Serving(3);
  const uint64_t ask = w.Remove("w2");
  EXPECT_FALSE(w.answered(ask));
  EXPECT_THAT(Message(w.answer(w.Remove("w2")).status()), HasSubstr("being removed already"));
  w.Advance(seconds(1));
  ASSERT_TRUE(w.answer(ask).ok()) << w.answer(ask).status();
  EXPECT_EQ(w.answer(ask)->named_ranges, "w1=0-3,w3=4-7");
  w.LetDismissedGo();
  EXPECT_THAT(Message(w.answer(w.Remove("w2")).status()), HasSubstr("no worker 'w2'; there are "));
  // The mark of a drain goes too.
  w.Drain("w3");
  w.Advance(seconds(1));
  w.Leave("w3");
  EXPECT_TRUE(w.answer(w.Remove("w3")).ok());
  w.Join("w3");
  EXPECT_FALSE(w.status().members[1].drained);
  // Refused where nobody can take the layers: then it stays.
  ClusterWorld& small = Serving(2, {.memory = 700});
  const uint64_t refused = small.Remove("w2");
  small.Advance(seconds(1));
  EXPECT_THAT(Message(small.answer(refused).status()), HasSubstr("w1 needs"));
  EXPECT_FALSE(small.member("w2").dismissed);
  EXPECT_EQ(small.ranges(), "w1=0-3,w2=4-7");
}

TEST_F(ClusterDetachTest, OneThatIsStuckInALayerIsLost) {
  const auto micros = [](Duration d) {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(d).count());
  };
  struct Case {
    Duration in_layer, estimate;
    bool stuck;
  };
  for (const Case& c : {Case{seconds(9), milliseconds(1), false}, Case{seconds(11), milliseconds(1), true},
                        Case{seconds(11), seconds(2), false}, Case{seconds(17), seconds(2), true},
                        Case{seconds(500), {}, false}, Case{seconds(601), {}, true}}) {
    ClusterWorld& w = Serving(2);
    MemberLoad load;
    load.in_layer_us = micros(c.in_layer);
    load.layer_estimate_us = micros(c.estimate);
    w.Report("w2", load);
    EXPECT_EQ(w.forgotten.size(), c.stuck ? 1u : 0u) << c.in_layer.count();
    if (!c.stuck) continue;
    EXPECT_THAT(Message(w.engine.losses[0]), HasSubstr("it computes one layer for"));
    w.Advance(seconds(1));
    EXPECT_EQ(w.ranges(), "w1=0-7");
  }
}

bool Broke(const ClusterWorld& w) {
  return std::find(w.engine.calls.begin(), w.engine.calls.end(), "break") != w.engine.calls.end();
}

// A link swallows a step: the end before it has the step, the next one doesn't, and both wait.
TEST_F(ClusterDetachTest, ASilentLinkIsBroken) {
  struct Case {
    const char* what;
    // The last step at each of four ends; the coordinator's are the first and the last.
    uint64_t sent, first, second, came;
    const char* silent = nullptr;  // the link that is found
    uint64_t more_bytes = 0;       // that come to everybody between two reports
    bool first_computes = false, first_sends = false, second_computes = false, second_answers = true;
    uint64_t plan = 1;
  };
  for (const Case& c :
       {Case{"between workers", 9, 9, 8, 8, "from w1 to w2"}, Case{"nothing is owed", 9, 9, 9, 9},
        Case{"from the coordinator", 9, 8, 8, 8, "from the coordinator to w1"},
        Case{"to the coordinator", 9, 9, 9, 8, "from w2 to the coordinator"},
        Case{.what = "slow links", .sent = 9, .first = 8, .second = 7, .came = 6, .more_bytes = 10},
        Case{.what = "it can't be handed over",
        .sent = 9,
        .first = 9,
        .second = 8,
        .came = 8,
        .silent = "from w1 to w2",
        .first_computes = true,
        .first_sends = true},
        Case{.what = "the second computes, or waits",
        .sent = 9,
        .first = 9,
        .second = 8,
        .came = 8,
        .second_computes = true},
        Case{.what = "the second is stuck", .sent = 9, .first = 9, .second = 8, .came = 8, .second_answers = false},
        Case{.what = "the first computes", .sent = 9, .first = 9, .second = 8, .came = 8, .first_computes = true},
        Case{.what = "numbers of another plan", .sent = 9, .first = 9, .second = 8, .came = 8, .plan = 7}}) {
    ClusterWorld& w = Serving(2);
    ASSERT_EQ(w.status().plan->epoch.number, 1u);
    uint64_t bytes = 0;
    const auto report = [&](Duration time) {
      for (Duration at{}; at < time && !Broke(w); at += milliseconds(250)) {
        w.Advance(milliseconds(250));
        bytes += c.more_bytes;
        w.progress = {.plan = c.plan, .step_sent = c.sent, .step_came = c.came, .bytes_received = bytes};
        MemberLoad load;
        load.plan = c.plan;
        load.bytes_received = bytes;
        load.step_taken = c.first;
        load.in_step = c.first_computes;
        load.sending = c.first_sends;
        w.Report("w1", load);
        load.step_taken = c.second;
        load.in_step = c.second_computes;
        load.sending = false;
        load.unanswered_us = c.second_answers ? 0 : 2'000'000;
        w.Report("w2", load);
      }
    };
    report(milliseconds(4750));
    EXPECT_FALSE(Broke(w)) << c.what;
    report(seconds(2));
    EXPECT_EQ(Broke(w), c.silent != nullptr) << c.what;
    if (c.silent == nullptr) continue;
    EXPECT_TRUE(w.logged(fmt::format("the link {} is silent", c.silent))) << c.what;
    w.Advance(seconds(1));
    EXPECT_EQ(w.status().plans, 2u) << "it was repaired";
    EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
    EXPECT_EQ(w.problem(), "");
  }
}

// Reports that waited while the coordinator's process stood still are no silence.
TEST_F(ClusterDetachTest, ACoordinatorThatSleptFindsNoSilentLink) {
  ClusterWorld& w = Serving(2);
  const auto report = [&] {
    w.progress = {.plan = 1, .step_sent = 9, .step_came = 8};
    w.Report("w1", {.plan = 1, .step_taken = 9});
    w.Report("w2", {.plan = 1, .step_taken = 8});
  };
  report();
  w.Advance(seconds(20));
  for (int i = 0; i < 10; ++i) report();
  EXPECT_FALSE(Broke(w));
}

// A report of a while ago says nothing of now: the worker's next one may be under way, or its connection is cut.
TEST_F(ClusterDetachTest, AnOldReportIsNoSignOfASilentLink) {
  ClusterWorld& w = Serving(2);
  w.progress = {.plan = 1, .step_sent = 9, .step_came = 8};
  w.Report("w2", {.plan = 1, .step_taken = 8});
  for (int i = 0; i < 40; ++i) {
    w.Advance(milliseconds(250));
    w.Report("w1", {.plan = 1, .step_taken = 9});
  }
  EXPECT_FALSE(Broke(w));
  // With its reports the time begins.
  for (int i = 0; i < 30 && !Broke(w); ++i) {
    w.Advance(milliseconds(250));
    w.Report("w1", {.plan = 1, .step_taken = 9});
    w.Report("w2", {.plan = 1, .step_taken = 8});
    EXPECT_FALSE(Broke(w) && i < 18) << i;
  }
  EXPECT_TRUE(Broke(w));
}

// Its thread does not come back, though it is in no layer.
TEST_F(ClusterDetachTest, AStageThatDoesNotAnswerIsLost) {
  ClusterWorld& w = Serving(2);
  w.Report("w2", {.unanswered_us = 9'900'000});
  EXPECT_TRUE(w.has("w2"));
  w.may_forget = true;
  w.Report("w2", {.unanswered_us = 10'100'000});
  EXPECT_FALSE(w.has("w2"));
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-7");
  EXPECT_EQ(w.problem(), "");
}

// A link that can't be made again costs its receiver the layers.
TEST_F(ClusterDetachTest, ASilentLinkThatCantBeRepairedIsDoneWithout) {
  ClusterWorld& w = Serving(2);
  w.member("w2").reachable = false;
  for (int i = 0; i < 30 && !Broke(w); ++i) {
    w.Advance(milliseconds(250));
    w.progress = {.plan = 1, .step_sent = 9, .step_came = 8};
    w.Report("w1", {.plan = 1, .step_taken = 9});
    w.Report("w2", {.plan = 1, .step_taken = 8});
  }
  w.Advance(seconds(3));
  EXPECT_EQ(w.ranges(), "w1=0-7");
  EXPECT_EQ(w.problem(), "");
}

}  // namespace
}  // namespace gyre
