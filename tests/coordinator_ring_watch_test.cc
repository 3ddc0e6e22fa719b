// The ring that serves: whether it is whole, what it owes, since when it stands still, and when the next plan is tried.
#include "coordinator/cluster/ring_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/cluster/adoption.h"
#include "coordinator/cluster/kept_record.h"
#include "coordinator/cluster/outage.h"
#include "coordinator/cluster/plan_log.h"
#include "coordinator/cluster/retry_pace.h"
#include "coordinator/cluster/serving_ring.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Deadline kStart = Deadline{} + std::chrono::hours(1);

Plan TwoStages(uint64_t number) {
  Plan plan{.epoch = {.term = 7, .number = number}, .num_layers = 4};
  plan.stages = MakeStages({{"a", "a:1", {0, 2}}, {"b", "b:1", {2, 4}}});
  return plan;
}

class RingWatchTest : public ::testing::Test {
 protected:
  // All report four times a second, until a link is found to be silent. The time after which; 0 s: none is in 10 s.
  Duration Watch(Duration pause = milliseconds(250)) {
    for (Duration d{}; d <= seconds(10); d += pause) {
      for (auto& [name, report] : reports_) report.at = now_;
      watch_.See(progress_);
      found_ = watch_.Check(&plan_, lookup_, now_);
      if (found_) return d;
      now_ += pause;
    }
    return {};
  }
  RingWatch watch_{seconds(5)};
  Plan plan_ = TwoStages(3);
  RingProgress progress_{.plan = 3, .step_sent = 9, .step_came = 8};
  std::map<std::string, MemberReport> reports_{{"a", {{.plan = 3, .step_taken = 9}, {}}},
                                               {"b", {{.plan = 3, .step_taken = 8}, {}}}};
  RingWatch::Reports lookup_ = [this](const std::string& name) {
    const auto it = reports_.find(name);
    return it == reports_.end() ? nullptr : &it->second;
  };
  std::optional<Status> found_;
  Deadline now_ = kStart;
};

TEST_F(RingWatchTest, ALinkThatOwesAStepAndBringsNothingIsSilent) {
  EXPECT_EQ(Watch(), seconds(5));
  EXPECT_THAT(Message(*found_), HasSubstr("the link from a to b is silent: it owes a step, and for 5.0 s"));
}

TEST_F(RingWatchTest, TheCoordinatorsOwnLinksCountLikewise) {
  reports_["a"].load.step_taken = 8;
  EXPECT_EQ(Watch(), seconds(5));
  EXPECT_THAT(Message(*found_), HasSubstr("from the coordinator to a"));
  for (auto& [name, report] : reports_) report.load.step_taken = 9;
  EXPECT_EQ(Watch(), seconds(5));
  EXPECT_THAT(Message(*found_), HasSubstr("from b to the coordinator"));
}

TEST_F(RingWatchTest, WhoComputesOrCannotHandOnTakesNothingIn) {
  reports_["b"].load.in_step = true;
  EXPECT_EQ(Watch(), Duration{});
  reports_["b"].load.in_step = false;
  reports_["a"].load.in_step = true;
  EXPECT_EQ(Watch(), Duration{});
  reports_["a"].load.sending = true;
  EXPECT_EQ(Watch(), seconds(5)) << "it waits for b, which is idle";
}

TEST_F(RingWatchTest, BytesAndAnotherPlanBeginTheTimeAnew) {
  for (int i = 0; i < 40; ++i) {
    ++reports_["b"].load.bytes_received;
    for (auto& [name, report] : reports_) report.at = now_;
    watch_.See(progress_);
    EXPECT_FALSE(watch_.Check(&plan_, lookup_, now_).has_value()) << "a slow link";
    now_ += milliseconds(250);
  }
  watch_.PlanChanged();
  EXPECT_EQ(Watch(), seconds(5));
}

TEST_F(RingWatchTest, OldReportsSayNothing) {
  EXPECT_EQ(Watch(milliseconds(1100)), Duration{}) << "this process slept in between";
  reports_["b"].load.plan = 2;
  EXPECT_EQ(Watch(), Duration{}) << "of the plan before";
  EXPECT_FALSE(watch_.Check(nullptr, lookup_, now_).has_value());
}

TEST_F(RingWatchTest, TheEngineKnowsSinceWhenAResultIsOwed) {
  progress_.owes_since = kStart;
  watch_.See(progress_);
  EXPECT_EQ(watch_.OwesSince(plan_), kStart);
  EXPECT_EQ(watch_.OwesSince(TwoStages(4)), std::nullopt) << "another plan's";
}

TEST(ServingRingTest, ABrokenRingServesNothingUntilTheNextPlan) {
  ServingRing ring;
  EXPECT_EQ(ring.plan(), nullptr);
  ring.Serve(TwoStages(3));
  ring.SetFallback(true);
  EXPECT_EQ(ring.whole(), ring.plan());
  EXPECT_TRUE(ring.Has("a"));
  EXPECT_FALSE(ring.Has("c"));
  ring.Untold(Unavailable("a link ended"));
  ring.Break(kStart);
  EXPECT_EQ(ring.whole(), nullptr);
  EXPECT_EQ(ring.plan()->epoch.number, 3u);
  EXPECT_EQ(ring.repair_at(), kStart);
  EXPECT_EQ(Message(ring.BeginRepair()), "a link ended");
  EXPECT_EQ(ring.repair_at(), kNoDeadline);
  EXPECT_TRUE(ring.BeginRepair().ok()) << "it is told once";
  ring.Serve(TwoStages(4));
  EXPECT_EQ(ring.whole()->epoch.number, 4u);
  EXPECT_TRUE(ring.fallback()) << "whether the next plan is one is found when it is done";
  EXPECT_EQ(ring.Lose().epoch.number, 4u);
  EXPECT_EQ(ring.plan(), nullptr);
  EXPECT_FALSE(ring.fallback());
  EXPECT_FALSE(ring.broken());
}

TEST(OutageTest, ItLastsFromTheFirstSignAndHasTheLastFault) {
  Outage outage;
  EXPECT_EQ(outage.End(), std::nullopt);
  outage.Begin(kStart, absl::OkStatus());
  outage.Begin(kStart + seconds(1), Unavailable("broken"));
  outage.Begin(kStart + seconds(2), absl::OkStatus());
  const auto stop = outage.End();
  ASSERT_TRUE(stop.has_value());
  EXPECT_EQ(stop->since, kStart);
  EXPECT_EQ(Message(stop->why), "broken") << "a pause during an outage is no other reason";
  EXPECT_FALSE(outage.begun());
}

TEST(OutageTest, WhatTheEngineWasToldIsNoNews) {
  Outage outage;
  EXPECT_TRUE(outage.IsNews(Unavailable("x")));
  outage.Told(Unavailable("x"));
  EXPECT_FALSE(outage.IsNews(Unavailable("x")));
  outage.Blame(Unavailable("lost"), "a");
  outage.Excuse("b");
  EXPECT_FALSE(outage.trouble().ok());
  outage.Excuse("a");
  EXPECT_TRUE(outage.trouble().ok()) << "it has joined again";
  outage.Served();
  EXPECT_TRUE(outage.IsNews(Unavailable("x")));
}

TEST(RetryPaceTest, FailuresDoubleThePauseUntilSomethingChanges) {
  RetryPace pace(seconds(2), seconds(60));
  EXPECT_LE(pace.next(), kStart) << "the first plan is tried at once";
  std::vector<Duration> pauses;
  for (int i = 0; i < 7; ++i) {
    pace.Failed(kStart);
    pauses.push_back(pace.next() - kStart);
  }
  EXPECT_THAT(pauses,
              ElementsAre(seconds(2), seconds(4), seconds(8), seconds(16), seconds(32), seconds(60), seconds(60)));
  pace.LeaveFailed(kStart);
  EXPECT_EQ(pace.leave_at(), kStart + seconds(60));
  pace.MayLeave(kStart);
  EXPECT_EQ(pace.leave_at(), kStart);
  pace.MembersChanged(kStart);
  EXPECT_EQ(pace.next(), kStart);
  pace.Failed(kStart);
  EXPECT_EQ(pace.next(), kStart + seconds(2));
  pace.NotLaterThan(kStart + seconds(3));
  EXPECT_EQ(pace.next(), kStart + seconds(2));
}

TEST(RetryPaceTest, TwoDeathsInTenMinutesAreSuspicious) {
  RetryPace pace(seconds(2), seconds(60));
  pace.Crashed(kStart);
  EXPECT_FALSE(pace.Suspicious(kStart));
  pace.Crashed(kStart + minutes(9));
  EXPECT_TRUE(pace.Suspicious(kStart + minutes(9)));
  EXPECT_FALSE(pace.Suspicious(kStart + minutes(10)));
  pace.Crashed(kStart + minutes(18));
  EXPECT_TRUE(pace.Suspicious(kStart + minutes(18))) << "the last two count";
}

TEST(KeptRecordTest, ItIsWrittenWhenAPlanServesOrADrainChanges) {
  KeptRecord record{std::nullopt};
  EXPECT_FALSE(record.TakeChanged({}).has_value());
  EXPECT_FALSE(record.served());
  record.Serve(TwoStages(3), 10, true);
  const auto kept = record.TakeChanged({});
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(*kept, (ClusterRecord{.stages = {{"a", {0, 2}, "a:1"}, {"b", {2, 4}, "b:1"}},
                                  .num_blocks = 10,
                                  .on_workers = true,
                                  .plan = 3,
                                  .drained = {}}));
  EXPECT_FALSE(record.TakeChanged({}).has_value());
  EXPECT_EQ(record.TakeChanged({"a"})->drained, (std::set<std::string>{"a"}));
  record.SetBlocks(12);
  EXPECT_EQ(record.TakeChanged({"a"})->num_blocks, 12u);
  record.Serve(TwoStages(4), 12, false);
  EXPECT_TRUE(record.on_workers()) << "one over workers has served";
  EXPECT_TRUE(KeptRecord{record.TakeChanged({"a"})}.served()) << "the next coordinator's";
}

TEST(AdoptionTest, WhoIsMissingIsWaitedForUnlessItIsGone) {
  const ClusterRecord record{.stages = {{"a", {0, 2}, "a:1"}, {"b", {2, 4}, "b:1"}}};
  Adoption adoption(record, seconds(10));
  Roster roster{{}};
  roster.Add({.name = "a"}, 1, 1);
  EXPECT_TRUE(adoption.pending());
  const auto missing = adoption.Begin(roster, kStart);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].worker, "b");
  EXPECT_TRUE(adoption.Begin(roster, kStart + seconds(5)).empty()) << "its process is looked for once";
  EXPECT_EQ(adoption.until(), kStart + seconds(10));
  EXPECT_TRUE(adoption.Waits(roster, kStart + milliseconds(9999)));
  EXPECT_FALSE(adoption.Waits(roster, kStart + seconds(10)));
  EXPECT_EQ(adoption.Missing(roster), "b");
  adoption.FoundGone("b");
  EXPECT_FALSE(adoption.Waits(roster, kStart));
  EXPECT_EQ(adoption.Take(), record);
  EXPECT_FALSE(adoption.pending());
  EXPECT_FALSE(Adoption(ClusterRecord{}, seconds(10)).pending()) << "no plan had served";
}

TEST(PlanLogTest, ANumberIsUsedOnce) {
  PlanLog log(7);
  EXPECT_EQ(log.next(), (Epoch{.term = 7, .number = 1}));
  EXPECT_EQ(log.TakeNext(), (Epoch{.term = 7, .number = 1}));
  EXPECT_EQ(log.TakeNext(), (Epoch{.term = 7, .number = 2}));
  log.Aborted(Internal("x"));
  log.Refused(Internal("y"));
  EXPECT_EQ(log.aborted(), 1u);
  EXPECT_EQ(log.failures(), 2u);
  EXPECT_EQ(log.failure(), Internal("y"));
  EXPECT_TRUE(log.RefusedAlone(Internal("z")));
  EXPECT_FALSE(log.RefusedAlone(Internal("z"))) << "the same again";
  EXPECT_EQ(log.failures(), 4u);
}

}  // namespace
}  // namespace gyre
