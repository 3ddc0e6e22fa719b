// A cluster that knows how fast its members are: shares, proposals, plans by itself, and reasons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "coordinator/cluster/balance.h"
#include "tests/testing/cluster_world.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ClusterWorld;
using ::testing::HasSubstr;
using ::testing::Not;

ClusterPolicy Policy(Rebalance mode, int min_workers = 2, int layers = 12) {
  ClusterPolicy p = ClusterWorld::Policy(layers, min_workers);
  p.rebalance.mode = mode;
  return p;
}

MemberInfo Fast(double memory_rate, uint64_t memory = 0) {
  return {.memory = memory, .speed = {.memory_bytes_per_second = memory_rate, .operations_per_second = 1e18}};
}

// Time passes, and members report.
void Live(ClusterWorld& world, Duration time, const std::vector<std::string>& members) {
  for (Duration at{}; at < time; at += milliseconds(250)) {
    world.Advance(milliseconds(250));
    for (const std::string& name : members) {
      if (world.has(name)) world.Report(name, {});
    }
  }
}

std::string Proposed(const ClusterWorld& world) {
  return world.status().proposal ? world.status().proposal->ranges : "";
}

std::string WhyOf(const ClusterWorld& world, const std::string& name) {
  for (const MemberStatus& m : world.status().members) {
    if (m.info.name == name) return m.why;
  }
  return "";
}

TEST(ClusterRebalanceTest, UnequalMachinesGetUnequalShares) {
  ClusterWorld world(Policy(Rebalance::kAsk, 3));
  world.Join("a", Fast(100));
  world.Join("b", Fast(200));
  world.Join("c", Fast(300));
  world.Advance(seconds(1));
  EXPECT_EQ(world.ranges(), "a=0-1,b=2-5,c=6-11");
  // The others share what one leaves, by their speeds.
  world.Drain("b");
  world.Advance(seconds(1));
  EXPECT_EQ(world.ranges(), "a=0-2,c=3-11");
  EXPECT_EQ(world.problem(), "");
}

TEST(ClusterRebalanceTest, AlmostEqualMachinesShareEvenly) {
  ClusterWorld world(Policy(Rebalance::kAsk));
  world.Join("a", Fast(100));
  world.Join("b", Fast(110));
  world.Advance(seconds(1));
  EXPECT_EQ(world.ranges(), "a=0-5,b=6-11");
}

// Before its first report it may not have the key for probes yet, and would take its peers for unauthenticated peers.
TEST(ClusterRebalanceTest, NobodyMeasuresALinkToAWorkerThatHasNotReported) {
  ClusterWorld world(Policy(Rebalance::kAsk));
  world.CanProbe();
  world.Join("a", Fast(100));
  world.Join("b", Fast(100));
  world.Advance(seconds(1));
  world.probes.clear();
  world.first_report = milliseconds(500);
  world.Join("c", Fast(100));
  world.Advance(milliseconds(499));
  EXPECT_TRUE(world.probes.empty());
  world.Advance(seconds(1));
  EXPECT_THAT(world.probes, ::testing::UnorderedElementsAre("a", "b", "c", ""));
}

TEST(ClusterRebalanceTest, AWorkerThatJoinsIsMeasuredAndProposed) {
  ClusterWorld world(Policy(Rebalance::kAsk));
  world.Join("a", Fast(100));
  world.Join("b", Fast(100));
  Live(world, seconds(5), {"a", "b"});
  EXPECT_EQ(Proposed(world), "");
  EXPECT_THAT(world.probes, ::testing::UnorderedElementsAre("a", "b"));
  const uint64_t none = world.TakeProposed();
  EXPECT_THAT(Message(world.answer(none).status()), HasSubstr("no plan is proposed"));
  world.Join("c", Fast(100));
  Live(world, seconds(10), {"a", "b", "c"});
  EXPECT_EQ(Proposed(world), "a=0-3,b=4-7,c=8-11");
  EXPECT_EQ(world.ranges(), "a=0-5,b=6-11") << "it is only asked";
  EXPECT_NEAR(world.status().proposal->gain, 1.5, 0.01);
  EXPECT_THAT(world.status().proposal->why, HasSubstr("c gets layers"));
  EXPECT_TRUE(world.logged("a better plan is known: a=0-3,b=4-7,c=8-11"));
  EXPECT_THAT(WhyOf(world, "c"), HasSubstr("layers 8-11 in the best plan"));
  EXPECT_THAT(WhyOf(world, "a"), HasSubstr("its layers 0-5 take"));
  const uint64_t took = world.TakeProposed();
  world.Advance(seconds(1));
  EXPECT_TRUE(world.answer(took).ok()) << world.answer(took).status();
  EXPECT_EQ(world.ranges(), "a=0-3,b=4-7,c=8-11");
  Live(world, seconds(10), {"a", "b", "c"});
  EXPECT_EQ(Proposed(world), "");
  EXPECT_EQ(world.problem(), "");
}

TEST(ClusterRebalanceTest, AutoTakesTheWorkerInByItself) {
  ClusterWorld world(Policy(Rebalance::kAuto));
  world.Join("a", Fast(100));
  world.Join("b", Fast(100));
  Live(world, seconds(5), {"a", "b"});
  world.Join("c", Fast(100));
  Live(world, seconds(6), {"a", "b", "c"});
  EXPECT_EQ(world.ranges(), "a=0-3,b=4-7,c=8-11");
  // The next one has to wait.
  world.Join("d", Fast(300));
  Live(world, seconds(30), {"a", "b", "c", "d"});
  EXPECT_EQ(world.ranges(), "a=0-3,b=4-7,c=8-11");
  Live(world, seconds(40), {"a", "b", "c", "d"});
  EXPECT_EQ(world.ranges(), "a=0-1,b=2-3,c=4-5,d=6-11");
  EXPECT_EQ(world.problem(), "");
}

TEST(ClusterRebalanceTest, OffMeasuresAndProposesNothing) {
  ClusterWorld world(Policy(Rebalance::kOff));
  for (const char* name : {"a", "b"}) world.Join(name, Fast(100));
  world.Advance(seconds(1));
  world.Join("c", Fast(900));
  Live(world, seconds(10), {"a", "b", "c"});
  EXPECT_TRUE(world.probes.empty());
  EXPECT_EQ(Proposed(world), "");
  EXPECT_THAT(Message(world.answer(world.TakeProposed()).status()), HasSubstr("--rebalance off"));
}

TEST(ClusterRebalanceTest, WhoCantBeReachedIsLeftOutAndTriedAgain) {
  ClusterWorld world(Policy(Rebalance::kAuto));
  for (const char* name : {"a", "b"}) world.Join(name, Fast(100));
  Live(world, seconds(5), {"a", "b"});
  for (const char* name : {"a", "b"}) {
    world.member(name).links["c"] = {.to = "c", .failure = "Connection refused"};
  }
  testing::SimulatedMember& c = world.Join("c", Fast(100));
  c.links["coordinator"] = {.to = "coordinator", .failure = "Connection refused"};
  Live(world, seconds(10), {"a", "b", "c"});
  EXPECT_EQ(Proposed(world), "");
  EXPECT_THAT(WhyOf(world, "c"), HasSubstr("it does not reach coordinator: Connection refused"));
  EXPECT_THAT(WhyOf(world, "c"), HasSubstr("a does not reach it: Connection refused"));
  for (const char* name : {"a", "b", "c"}) world.member(name).links.clear();
  Live(world, seconds(70), {"a", "b", "c"});
  EXPECT_EQ(world.ranges(), "a=0-3,b=4-7,c=8-11");
  EXPECT_EQ(world.problem(), "");
}

// Two workers, of whom the first does not reach the second: a ring of both begins with the second. It is made where the
// coordinator reaches that one.
TEST(ClusterRebalanceTest, WhatTheCoordinatorDoesNotReachIsNotTheFirstStage) {
  for (const bool reaches : {true, false}) {
    SCOPED_TRACE(reaches);
    ClusterWorld world(Policy(Rebalance::kAuto, 1));
    world.CanProbe();
    testing::SimulatedMember& a = world.Join("a", Fast(100));
    Live(world, seconds(5), {"a"});
    EXPECT_THAT(world.probes, ::testing::UnorderedElementsAre("a", ""));
    ASSERT_EQ(world.ranges(), "a=0-11");
    a.links["b"] = {.to = "b", .failure = "No route to host"};
    if (!reaches) world.links["b"] = {.to = "b", .failure = "Connection refused"};
    world.Join("b", Fast(100));
    Live(world, seconds(10), {"a", "b"});
    EXPECT_EQ(world.ranges(), reaches ? "b=0-5,a=6-11" : "a=0-11");
    EXPECT_EQ(world.logged("the coordinator does not reach b: Connection refused"), !reaches);
    if (reaches) continue;
    world.links.clear();
    Live(world, seconds(70), {"a", "b"});
    EXPECT_EQ(world.ranges(), "b=0-5,a=6-11") << "it is tried again";
    EXPECT_EQ(world.problem(), "");
  }
}

// Under the name of a member that has left another machine may come: nothing that was measured counts for it.
TEST(ClusterRebalanceTest, LinksToAMemberThatHasLeftAreMeasuredAgain) {
  ClusterWorld world(Policy(Rebalance::kAuto, 1));
  world.CanProbe();
  testing::SimulatedMember& a = world.Join("a", Fast(100));
  a.links["b"] = {.to = "b", .failure = "No route to host"};
  world.links["b"] = {.to = "b", .failure = "No route to host"};
  world.Join("b", Fast(100)).links["a"] = {.to = "a", .failure = "No route to host"};
  Live(world, seconds(10), {"a", "b"});
  EXPECT_EQ(world.ranges(), "a=0-11");
  world.Leave("b");
  Live(world, seconds(1), {"a"});
  world.probes.clear();
  a.links.clear();
  world.links.clear();
  world.Join("b", Fast(100));
  Live(world, seconds(10), {"a", "b"});
  EXPECT_THAT(world.probes, ::testing::UnorderedElementsAre("a", "b", ""));
  EXPECT_EQ(world.ranges(), "a=0-5,b=6-11");
  EXPECT_EQ(world.problem(), "");
}

TEST(ClusterRebalanceTest, WhoIsFarAwayOrSlowGetsNothingAndTheReasonSaysWhy) {
  ClusterWorld world(Policy(Rebalance::kAuto));
  for (const char* name : {"a", "b"}) world.Join(name, Fast(100));
  Live(world, seconds(5), {"a", "b"});
  testing::SimulatedMember& far = world.Join("far", Fast(100));
  for (const char* to : {"a", "b", "coordinator"}) {
    far.links[to] = {.to = to, .failure = "", .round_trip_us = 30'000'000, .bytes_per_second = 1e6};
  }
  world.Join("slow", Fast(5));
  Live(world, seconds(30), {"a", "b", "far", "slow"});
  EXPECT_EQ(world.ranges(), "a=0-5,b=6-11");
  EXPECT_THAT(WhyOf(world, "far"), HasSubstr("with it a step is expected every"));
  EXPECT_THAT(WhyOf(world, "slow"), HasSubstr("and every 6e+03 ms without it"));
}

TEST(ClusterRebalanceTest, AMemberThatAnswersNoProbeHoldsNobodyUp) {
  ClusterWorld world(Policy(Rebalance::kAuto));
  world.Join("a", Fast(100)).probes = false;
  world.Join("b", Fast(100));
  Live(world, seconds(25), {"a", "b"});
  world.Join("c", Fast(100));
  Live(world, seconds(60), {"a", "b", "c"});
  EXPECT_EQ(world.ranges(), "a=0-3,b=4-7,c=8-11");
}

// A stage that is slower than its numbers say gets fewer layers, and then rests there.
TEST(ClusterRebalanceTest, WhatIsSeenCountsMoreThanWhatWasMeasured) {
  ClusterWorld world(Policy(Rebalance::kAuto));
  for (const char* name : {"a", "b"}) world.Join(name, Fast(100));
  world.Advance(seconds(1));
  // Each step takes a layer's time for each layer, on b three times as long.
  std::map<std::string, MemberLoad> loads;
  const auto run = [&](Duration time) {
    for (Duration at{}; at < time; at += milliseconds(250)) {
      world.Advance(milliseconds(250));
      for (const MemberStatus& m : world.status().members) {
        if (!m.layers) continue;
        MemberLoad& load = loads[m.info.name];
        load.steps += 25;
        load.rows_sent += 25 * 16;
        load.busy_us += static_cast<uint64_t>(25 * m.layers->size()) * 100 * (m.info.name == "b" ? 3 : 1);
        world.Report(m.info.name, load);
      }
    }
  };
  run(seconds(12));
  EXPECT_EQ(world.ranges(), "a=0-5,b=6-11");
  run(seconds(60));
  EXPECT_EQ(world.ranges(), "a=0-8,b=9-11");
  const size_t plans = world.begun.size();
  run(std::chrono::minutes(20));
  EXPECT_EQ(world.begun.size(), plans) << "it rests";
  EXPECT_EQ(world.problem(), "");
}

TEST(ClusterRebalanceTest, APlanThatFailsIsNotTriedAgainAtOnce) {
  ClusterWorld world(Policy(Rebalance::kAuto));
  for (const char* name : {"a", "b"}) world.Join(name, Fast(100));
  Live(world, seconds(5), {"a", "b"});
  world.Join("c", Fast(100)).load_fault = Unavailable("its disk is gone");
  Live(world, std::chrono::minutes(10), {"a", "b", "c"});
  EXPECT_EQ(world.ranges(), "a=0-5,b=6-11");
  EXPECT_LE(world.begun.size(), 6u) << "after 1 minute, then 2, 4";
  EXPECT_GE(world.begun.size(), 3u);
  EXPECT_TRUE(world.status().plan);
  EXPECT_EQ(world.problem(), "");
}

TEST(ClusterRebalanceTest, LittleMemoryLimitsAShare) {
  ClusterWorld world(Policy(Rebalance::kAuto));
  for (const char* name : {"a", "b"}) world.Join(name, Fast(100));
  Live(world, seconds(5), {"a", "b"});
  world.Join("c", Fast(400, 230));  // two layers of 100 with pages of 10
  Live(world, seconds(10), {"a", "b", "c"});
  EXPECT_EQ(world.ranges(), "a=0-4,b=5-9,c=10-11");
  world.Join("d", Fast(400, 100));
  Live(world, seconds(70), {"a", "b", "c", "d"});
  EXPECT_THAT(WhyOf(world, "d"), HasSubstr("no plan has room for its share"));
  EXPECT_EQ(world.problem(), "");
}

TEST(ClusterRebalanceTest, AWishIsKept) {
  ClusterWorld world(Policy(Rebalance::kAuto));
  MemberInfo preferences = Fast(1000);
  preferences.preference = LayerRange{0, 2};
  world.Join("a", preferences);
  world.Join("b", Fast(100));
  Live(world, seconds(20), {"a", "b"});
  EXPECT_EQ(world.ranges(), "a=0-1,b=2-11");
  EXPECT_EQ(Proposed(world), "");
}

// The first plan of three workers against every way to cut the layers in their order.
TEST(ClusterRebalanceTest, NoFirstPlanIsMuchSlowerThanTheBestSplit) {
  std::mt19937 random(11);
  int uneven = 0;
  for (int run = 0; run < 200; ++run) {
    const ClusterPolicy policy = Policy(Rebalance::kAsk, 3, 24);
    ClusterWorld world(policy);
    Balance b{.sizes = policy.sizes, .rows = policy.rows, .row_bytes = policy.row_bytes, .members = {}, .hops = {}};
    for (const char* name : {"a", "b", "c"}) {
      const MemberInfo info = Fast(std::uniform_real_distribution(50., 100.)(random));
      world.Join(name, info);
      b.members.push_back({.member = {.name = name}, .speed = info.speed});
    }
    double best = kNever, even = kNever;
    for (int first = 1; first < 23; ++first) {
      for (int second = first + 1; second < 24; ++second) {
        const double time = TimeOf(b, {{0, {0, first}}, {1, {first, second}}, {2, {second, 24}}}).seconds;
        best = std::min(best, time);
        if (first == 8 && second == 16) even = time;
      }
    }
    world.Advance(seconds(1));
    std::vector<RingStage> chosen;
    for (const MemberStatus& m : world.status().members) {
      ASSERT_TRUE(m.layers.has_value()) << "run " << run;
      chosen.push_back({static_cast<size_t>(m.info.name[0] - 'a'), *m.layers});
    }
    std::sort(chosen.begin(), chosen.end(),
              [](const RingStage& x, const RingStage& y) { return x.layers.begin < y.layers.begin; });
    EXPECT_LE(TimeOf(b, chosen).seconds, 1.05 * best) << "run " << run << " " << world.ranges();
    uneven += even > 1.05 * best;
  }
  EXPECT_GT(uneven, 100) << "even shares would do";
}

// Weights are fetched only where they have room, and the room of a disk changes.
TEST(ClusterRebalanceTest, TheRoomOfADiskIsHeardOf) {
  ClusterWorld world(Policy(Rebalance::kAsk, 2));
  const auto fetches = [](uint64_t disk) {
    MemberInfo info = Fast(100);
    info.fetches = true;
    info.disk = disk;
    return info;
  };
  const uint64_t half = RangeBytes(ClusterWorld::Policy(12, 2).sizes, {6, 12});
  world.Join("a", Fast(100));
  world.Join("b", fetches(1));
  Live(world, seconds(10), {"a", "b"});
  EXPECT_EQ(world.ranges(), "") << "b has no room, and there are two workers to be";
  EXPECT_THAT(world.status().state, HasSubstr("its disk has room for 1 byte"));
  world.Report("b", {.weights_room = half});
  world.Advance(seconds(1));
  EXPECT_EQ(world.ranges(), "a=0-5,b=6-11") << "without joining again";
  EXPECT_EQ(world.status().members[1].info.disk, half);
  // What it has stays there while more comes.
  EXPECT_THAT(Message(world.DryRun("a=0-4,b=5-11").status()), HasSubstr("its disk has room for"));
  world.Report("b", {.weights_room = 10 * half});
  EXPECT_TRUE(world.DryRun("a=0-4,b=5-11").ok());
  world.Report("b", {.weights_room = half});
  EXPECT_FALSE(world.DryRun("a=0-4,b=5-11").ok()) << "the disk filled meanwhile";
  world.Report("b", {});
  EXPECT_FALSE(world.DryRun("a=0-4,b=5-11").ok()) << "what was not measured changes nothing";
  // One that does not fetch has no limit, whatever it says.
  world.Report("a", {.weights_room = 1});
  EXPECT_EQ(world.status().members[0].info.disk, 0u);
  // The third would make the ring faster, and has no room for a layer.
  world.Join("c", fetches(7));
  Live(world, seconds(10), {"a", "b", "c"});
  EXPECT_EQ(Proposed(world), "");
  EXPECT_THAT(WhyOf(world, "c"), HasSubstr("no plan has room for its share: it has room for 7 bytes of weights"));
  for (int i = 0; i < 20; ++i) {
    world.Report("c", {.weights_room = 10 * half});
    world.Advance(milliseconds(250));
  }
  EXPECT_THAT(Proposed(world), HasSubstr("c="));
  EXPECT_EQ(world.problem(), "");
}

}  // namespace
}  // namespace gyre
