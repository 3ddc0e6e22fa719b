// Rings by measured speeds, against every ring that there is.
#include "coordinator/cluster/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace gyre {
namespace {

RatedMember Rated(const std::string& name, double memory_rate, double operations = 1e18) {
  return {.member = {.name = name},
          .speed = {.memory_bytes_per_second = memory_rate, .operations_per_second = operations}};
}

Balance Even(int layers) {
  Balance b;
  b.sizes.layers.assign(static_cast<size_t>(layers), 100);
  b.row_bytes = 100;
  return b;
}

std::string Text(const Balance& b, const StatusOr<std::vector<RingStage>>& ring) {
  if (!ring.ok()) return Message(ring.status());
  Plan plan;
  plan.stages = MakeStages(AssignmentsOf(b, *ring));
  return FormatNamedRanges(plan);
}

// A slow link to and from a member.
void Delay(Balance* b, size_t member, double latency) {
  const size_t n = b->members.size() + 1;
  if (b->hops.empty()) b->hops.assign(n, std::vector<HopSpeed>(n));
  for (size_t i = 0; i < n; ++i) b->hops[i][member].latency = b->hops[member][i].latency = latency;
}

TEST(BalanceTest, SharesGoBySpeed) {
  Balance b = Even(12);
  b.members = {Rated("a", 100), Rated("b", 200), Rated("c", 300)};
  EXPECT_EQ(Text(b, BestSplit(b)), "a=0-1,b=2-5,c=6-11");
  EXPECT_DOUBLE_EQ(TimeOf(b, *BestSplit(b)).seconds, 2.0);
  // The observed speed counts more than the measured one.
  b.members[2].slowdown = 3;
  EXPECT_EQ(Text(b, BestSplit(b)), "a=0-2,b=3-8,c=9-11");
  // The output matrix counts where it is.
  b.members[2].slowdown = 1;
  b.sizes.last = 600;
  EXPECT_EQ(Text(b, BestSplit(b)), "a=0-2,b=3-8,c=9-11");
}

TEST(BalanceTest, ProductsCountWhereTheyTakeLonger) {
  Balance b = Even(10);
  b.members = {Rated("a", 1e9, 4000), Rated("b", 1e9, 16000)};
  b.sizes.products.assign(10, 100);
  b.rows = 10;  // 2000 operations a layer
  EXPECT_EQ(Text(b, BestSplit(b)), "a=0-1,b=2-9");
}

TEST(BalanceTest, WhoWouldSlowTheRingGetsNothing) {
  Balance b = Even(8);
  b.members = {Rated("a", 100), Rated("b", 100), Rated("slow", 10)};
  EXPECT_EQ(Text(b, BestRing(b, 2)), "a=0-3,b=4-7") << "one layer would take it longer than four take the others";
  b.members[2].must = true;
  EXPECT_GT(TimeOf(b, *BestRing(b, 2)).seconds, 4.0);
  // As fast as they are, but far away: a step would come round too seldom.
  b.members[2] = Rated("far", 100);
  EXPECT_THAT(Text(b, BestRing(b, 2)), ::testing::HasSubstr("far="));
  Delay(&b, 2, 4.5);
  EXPECT_EQ(Text(b, BestRing(b, 2)), "a=0-3,b=4-7");
}

TEST(BalanceTest, MemoryAndReachLimitWhoGetsWhat) {
  Balance b = Even(8);
  b.sizes.memory.assign(b.sizes.layers.size(), {kPageGroup, 20});
  b.sizes.counts[kPageGroup] = 1;
  b.members = {Rated("a", 100), Rated("b", 100)};
  b.members[0].member.memory = 250;
  EXPECT_EQ(Text(b, BestRing(b, 2)), "a=0-1,b=2-7");
  b.members[0].member.holds = {6, 8};  // it keeps these meanwhile
  b.members[1].member.memory = 7 * 120;
  EXPECT_EQ(Text(b, BestRing(b, 2)), "b=0-5,a=6-7") << "where it has them already";
  b.members[1].member.memory = 5 * 120;
  EXPECT_THAT(Text(b, BestRing(b, 2)), ::testing::HasSubstr("no ring of 2 members holds 8 layers"));
  b.members[0].member = {.name = "a", .disk = 300};
  b.members[1].member.memory = 0;
  EXPECT_EQ(Text(b, BestSplit(b)), "a=0-2,b=3-7");
  b.members[0].member.holds = {2, 4};  // it keeps these meanwhile
  EXPECT_EQ(Text(b, BestSplit(b)), "a=0-0,b=1-7") << "0-1 beside 2-3 would be too much";
  b.members[0].member.disk = 1;
  b.members[0].member.holds = {0, 4};
  EXPECT_EQ(Text(b, BestSplit(b)), "a=0-3,b=4-7") << "nothing is fetched";
  b.members[0].member.holds = {};
  // Only one way leads from one to the other.
  b.members[0].member.disk = 0;
  b.hops.assign(3, std::vector<HopSpeed>(3));
  b.hops[0][1].reached = false;
  EXPECT_EQ(Text(b, BestRing(b, 2)), "b=0-3,a=4-7");
  b.hops[1][0].reached = false;
  EXPECT_EQ(Text(b, BestRing(b, 2)), "a=0-7");
  EXPECT_FALSE(BestSplit(b).ok());
}

TEST(BalanceTest, UnknownSpeedsAreThoseOfTheOthers) {
  std::vector<RatedMember> members{Rated("a", 100, 10), Rated("b", 300, 0), Rated("c", 0, 0)};
  FillUnknown(&members);
  EXPECT_EQ(members[2].speed.memory_bytes_per_second, 200);
  EXPECT_EQ(members[2].speed.operations_per_second, 10);
  EXPECT_EQ(members[1].speed.memory_bytes_per_second, 300);
  std::vector<RatedMember> nobody{Rated("a", 0, 0), Rated("b", 0, 0)};
  FillUnknown(&nobody);
  EXPECT_EQ(nobody[0].speed, nobody[1].speed);
  EXPECT_GT(nobody[0].speed.memory_bytes_per_second, 0);
}

// Calls `found` with every ring: all members that are chosen in every order, cut everywhere.
void EveryRing(const Balance& b, const std::function<void(const std::vector<RingStage>&)>& found) {
  const int layers = b.sizes.num_layers();
  std::vector<RingStage> ring;
  std::vector<bool> used(b.members.size());
  const std::function<void(int)> go = [&](int begin) {
    if (begin == layers) {
      for (size_t i = 0; i < b.members.size(); ++i) {
        if (b.members[i].must && !used[i]) return;
      }
      return found(ring);
    }
    if (!b.sizes.CanBegin(begin)) return;
    for (size_t m = 0; m < b.members.size(); ++m) {
      if (used[m]) continue;
      used[m] = true;
      for (int end = begin + 1; end <= layers; ++end) {
        ring.push_back({m, {begin, end}});
        go(end);
        ring.pop_back();
      }
      used[m] = false;
    }
  };
  go(0);
}

Balance RandomBalance(std::mt19937& random) {
  const auto draw = [&random](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  Balance b;
  const size_t members = 1 + random() % 4;
  const int layers = static_cast<int>(members) + static_cast<int>(random() % 4);
  for (int i = 0; i < layers; ++i) {
    b.sizes.layers.push_back(static_cast<uint64_t>(draw(50, 150)));
    b.sizes.products.push_back(static_cast<uint64_t>(draw(20, 300)));
    if (random() % 4 == 0) b.sizes.joined.resize(static_cast<size_t>(layers));
  }
  for (size_t i = 1; i < b.sizes.joined.size(); ++i) b.sizes.joined[i] = random() % 4 == 0;
  b.sizes.first = static_cast<uint64_t>(draw(0, 300));
  b.sizes.last = b.sizes.last_products = static_cast<uint64_t>(draw(0, 300));
  b.sizes.both = b.sizes.first + b.sizes.last;
  b.sizes.memory.assign(b.sizes.layers.size(), {kPageGroup, 30});
  b.sizes.counts[kPageGroup] = 1;
  b.rows = 1 + static_cast<double>(random() % 32);
  b.row_bytes = draw(1, 20);
  const bool tight = random() % 2 == 0;
  for (size_t i = 0; i < members; ++i) {
    RatedMember m = Rated("m" + std::to_string(i), draw(20, 200), draw(200, 20000));
    if (tight) m.member.memory = static_cast<uint64_t>(draw(200, 1500));
    if (random() % 4 == 0) {
      const int begin = static_cast<int>(random() % static_cast<unsigned>(layers));
      m.member.holds = {begin, begin + 1};
    }
    m.slowdown = draw(0.8, 2);
    m.must = random() % 6 == 0;
    b.members.push_back(std::move(m));
  }
  if (random() % 3 != 0) {
    b.hops.assign(members + 1, std::vector<HopSpeed>(members + 1));
    for (auto& row : b.hops) {
      for (HopSpeed& hop : row) {
        hop = {.reached = random() % 8 != 0, .latency = draw(0, 2), .bytes_per_second = draw(50, 2000)};
      }
    }
  }
  return b;
}

// Up to six members all orders are tried, so it is the best itself.
TEST(BalanceTest, NoRingIsBetterThanTheOneThatIsFound) {
  std::mt19937 random(5);
  int found_one = 0, left_out = 0;
  for (int run = 0; run < 400; ++run) {
    const Balance b = RandomBalance(random);
    double best = kNever;
    EveryRing(b, [&](const std::vector<RingStage>& ring) { best = std::min(best, TimeOf(b, ring).seconds); });
    const auto chosen = BestRing(b, b.members.size());
    ASSERT_EQ(chosen.ok(), best < kNever) << "run " << run << " " << chosen.status();
    if (!chosen.ok()) continue;
    ++found_one;
    left_out += chosen->size() < b.members.size();
    EXPECT_LE(TimeOf(b, *chosen).seconds, best * (1 + 1e-9)) << "run " << run << " " << Text(b, chosen);
  }
  EXPECT_GT(found_one, 200);
  EXPECT_GT(left_out, 50);
}

// With more members not all orders are tried.
TEST(BalanceTest, SevenMembersAreWithinFivePercentOfTheBest) {
  std::mt19937 random(6);
  for (int run = 0; run < 4; ++run) {
    Balance b = Even(8);
    b.sizes.last = 150;
    const auto draw = [&random](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
    for (int i = 0; i < 7; ++i) b.members.push_back(Rated("m" + std::to_string(i), draw(50, 200)));
    for (size_t i = 0; i < 7; ++i) Delay(&b, i, draw(0.01, 0.05));
    double best = kNever;
    EveryRing(b, [&](const std::vector<RingStage>& ring) { best = std::min(best, TimeOf(b, ring).seconds); });
    const auto chosen = BestRing(b, 6);
    ASSERT_TRUE(chosen.ok());
    EXPECT_LE(TimeOf(b, *chosen).seconds, best * 1.05) << "run " << run << " " << Text(b, chosen);
  }
}

TEST(BalanceTest, ManyLayersAndMembersTakeLittleTime) {
  std::mt19937 random(7);
  Balance b = Even(126);
  for (int i = 0; i < 12; ++i) {
    b.members.push_back(Rated("m" + std::to_string(i), std::uniform_real_distribution(50., 200.)(random)));
  }
  const auto began = Clock::now();
  const auto ring = BestRing(b, 11);
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->size(), 12u);
  // No cut can be better than all layers by all speeds.
  double speed = 0;
  for (const RatedMember& m : b.members) speed += m.speed.memory_bytes_per_second;
  EXPECT_LT(TimeOf(b, *ring).seconds, 126 * 100 / speed * 1.15);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10)) << "a fraction of a second without sanitizers";
}

}  // namespace
}  // namespace gyre
