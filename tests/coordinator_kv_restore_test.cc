// The KV cache beyond a plan: whose pages outlive a lost one, who takes part in restoring them, and the cache's size.
#include "coordinator/cluster/kv_restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/cluster/cache_size.h"
#include "coordinator/cluster/pending_change.h"

namespace gyre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kNamespace = 5;

Plan Replicated() {
  Plan plan{.epoch = {.term = 7, .number = 3}, .num_layers = 9};
  plan.stages = MakeStages({{"a", "a:1", {0, 3}}, {"b", "b:1", {3, 6}}, {"c", "c:1", {6, 9}}});
  plan.stages[0].replicated_by = "b";
  plan.stages[1].replicated_by = "c";
  plan.stages[2].replicated_by = "a";
  return plan;
}

class KvRestoreTest : public ::testing::Test {
 protected:
  KvRestoreTest() { restore_.Keep(Replicated(), kNamespace, {{"a", 1}, {"b", 2}, {"c", 3}}); }
  StatusOr<KvRestorePlan> Begin(const std::map<std::string, uint64_t>& live) {
    return restore_.Begin(true, kNamespace, live, 9);
  }
  KvRestore restore_;
};

TEST_F(KvRestoreTest, TheLivingAndTheReplicasOfTheLostHaveThePages) {
  const auto plan = Begin({{"a", 1}, {"c", 3}, {"d", 4}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->survivors, ElementsAre("a", "c"));
  EXPECT_THAT(plan->SourcesFor({0, 6}, "d"), ElementsAre(LayerSource{{0, 3}, "a", "a:1"},  //
                                                         LayerSource{{3, 6}, "c", "c:1", 3}));
  EXPECT_FALSE(plan->Copies({0, 3}, "a")) << "it has them";
  EXPECT_TRUE(restore_.possible()) << "for the next plan, if this one fails";
}

TEST_F(KvRestoreTest, OnlyNeededReplicasSayHowFarThePagesGo) {
  const auto plan = Begin({{"a", 1}, {"c", 3}});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->Step({{"c", 40}, {"a", 7}}), 40u) << "b is lost, and c has its replica";
  EXPECT_EQ(plan->Step({{"c", std::nullopt}}), std::nullopt);
  EXPECT_EQ(plan->Step({}), std::nullopt);
  const auto all = Begin({{"a", 1}, {"b", 2}, {"c", 3}});
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->Step({}), UINT64_MAX);
}

TEST_F(KvRestoreTest, PagesThatAreOfNoUseAreGivenUp) {
  const KvRestore kept = restore_;
  const auto why = [&](bool whole, uint64_t cache_namespace, const std::map<std::string, uint64_t>& live) {
    restore_ = kept;
    const auto plan = restore_.Begin(whole, cache_namespace, live, 9);
    EXPECT_EQ(restore_.possible(), plan.ok());
    return std::string(Message(plan.status()));
  };
  EXPECT_EQ(why(true, kNamespace, {{"a", 1}, {"c", 3}}), "");
  EXPECT_THAT(why(true, kNamespace, {{"a", 1}, {"c", 4}}), HasSubstr("a stage is lost with its replica"))
      << "c began again";
  EXPECT_THAT(why(true, 6, {{"a", 1}, {"c", 3}}), HasSubstr("rounded otherwise"));
  EXPECT_THAT(why(false, kNamespace, {{"a", 1}, {"c", 3}}), HasSubstr("the KV cache is cut"));
}

TEST_F(KvRestoreTest, ADropOrTheLossOfAnotherPlanLeavesNone) {
  const KvRestore kept = restore_;
  restore_.Drops("x");
  restore_.Lost({.term = 7, .number = 3});
  EXPECT_TRUE(restore_.possible());
  restore_.Drops("b");
  EXPECT_FALSE(restore_.possible());
  restore_ = kept;
  restore_.Lost({.term = 7, .number = 4});
  EXPECT_FALSE(restore_.possible());
}

TEST_F(KvRestoreTest, APredecessorsPlanHasNoReplicasAndAllAreAsked) {
  EXPECT_EQ(restore_.ReplicaAt("c"), (LayerRange{3, 6}));
  restore_.TakeOver(Replicated(), kNamespace, {{"a", 1}, {"b", 2}, {"c", 3}});
  EXPECT_EQ(restore_.ReplicaAt("c"), LayerRange{});
  const auto plan = Begin({{"a", 1}, {"b", 2}, {"c", 3}});
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->Copies({0, 3}, "a")) << "what it has is compared with the list";
  EXPECT_FALSE(Begin({{"a", 1}, {"c", 3}}).ok());
}

// "a: old, stage 0, copies"
std::vector<std::string> Describe(const std::vector<Participant>& participants) {
  std::vector<std::string> out;
  for (const Participant& p : participants) {
    out.push_back(p.worker + (p.in_old ? " old" : "") + (p.in_new() ? fmt::format(" {}", p.stage) : "") +
                  (p.copies ? " copies" : ""));
  }
  return out;
}

TEST_F(KvRestoreTest, MembersOfBothPlansTakePartInAChange) {
  const Plan runs = Replicated();
  Plan next{.epoch = {.term = 7, .number = 4}, .num_layers = 9};
  next.stages = MakeStages({{"a", "a:1", {0, 2}}, {"d", "d:1", {2, 3}}, {"c", "c:1", {3, 9}}});
  EXPECT_THAT(Describe(ParticipantsOf(&runs, next, nullptr)),
              ElementsAre("a old 0", "b old", "c old 2 copies", "d 1 copies"));
  EXPECT_THAT(Describe(ParticipantsOf(nullptr, next, nullptr)), ElementsAre("a 0", "c 2", "d 1"));
  const auto restore = Begin({{"a", 1}, {"b", 2}, {"c", 3}});
  ASSERT_TRUE(restore.ok());
  EXPECT_THAT(Describe(ParticipantsOf(nullptr, next, &*restore)),
              ElementsAre("a old 0", "b old", "c 2 copies", "d 1 copies"))
      << "nobody takes anything from c";
}

TEST_F(KvRestoreTest, AMemberIsToldWhereItsNewPagesAre) {
  const Plan runs = Replicated();
  Plan next{.epoch = {.term = 7, .number = 4}, .num_layers = 9};
  next.stages = MakeStages({{"a", "a:1", {0, 2}}, {"c", "c:1", {2, 9}}});
  PendingChange change{.plan = next, .transaction = PlanChange(next.epoch, {}, true, {}), .num_blocks = 10};
  ModelSizes sizes{.layers = std::vector<uint64_t>(9, 100), .memory = std::vector<ModelSizes::LayerMemory>(9)};
  sizes.counts[kPageGroup] = 10;
  const CacheSize cache(sizes);
  PrepareRequest request = change.RequestFor("c", &runs, {}, cache);
  EXPECT_EQ(request.stage, 1);
  EXPECT_FALSE(request.fresh);
  EXPECT_THAT(request.sources, ElementsAre(LayerSource{{2, 3}, "a", "a:1"}, LayerSource{{3, 6}, "b", "b:1"}));
  EXPECT_THAT(change.RequestFor("b", &runs, {}, cache).sources, IsEmpty()) << "it gets no layers";
  change.num_blocks = 9;
  request = change.RequestFor("c", &runs, {}, cache);
  EXPECT_TRUE(request.fresh);
  EXPECT_THAT(request.sources, IsEmpty()) << "a smaller cache forgets everything";
  EXPECT_EQ(request.memory[kPageGroup], 10u) << "but pools have room for the whole one";
  change.num_blocks = 10;
  const auto restore = Begin({{"a", 1}, {"c", 3}});
  ASSERT_TRUE(restore.ok());
  change.restore = *restore;
  request = change.RequestFor("c", nullptr, {}, cache);
  EXPECT_EQ(request.restores, 3u);
  EXPECT_THAT(request.sources, ElementsAre(LayerSource{{2, 3}, "a", "a:1"}, LayerSource{{3, 6}, "c", "c:1", 3}));
}

class CacheSizeTest : public ::testing::Test {
 protected:
  // Two members of two layers each: with their weights (100 a layer) and B blocks (10 bytes a layer and block).
  CacheSizeTest() {
    sizes_.layers.assign(4, 100);
    sizes_.memory.assign(4, {kPageGroup, 10});
    sizes_.counts[kPageGroup] = 10;
    plan_.num_layers = 4;
    plan_.stages = MakeStages({{"a", "a:1", {0, 2}}, {"b", "b:1", {2, 4}}});
  }
  std::vector<PlanMember> With(uint64_t memory) const {
    return {{.name = "a", .memory = memory}, {.name = "b", .memory = 10'000}};
  }
  ModelSizes sizes_;
  Plan plan_;
};

TEST_F(CacheSizeTest, ItIsCutToWhatMembersHoldBesideRoomForAResize) {
  const CacheSize cache(sizes_);
  EXPECT_EQ(cache.Cut(plan_, With(10'000), false), 10u);
  const auto cut = cache.Cut(plan_, With(340), false);
  ASSERT_TRUE(cut.has_value());
  EXPECT_LT(*cut, cache.Fit(plan_, With(340), false)) << "without that room there would be more";
  EXPECT_EQ(cache.Cut(plan_, With(230), false), std::nullopt);
  EXPECT_EQ(cache.Cut(plan_, With(230), true), 1u) << "rather bare than nothing";
  EXPECT_EQ(cache.Cut(plan_, With(100), true), std::nullopt);
}

TEST_F(CacheSizeTest, ItGrowsAgainAndGivesBackThatPart) {
  CacheSize cache(sizes_);
  EXPECT_FALSE(cache.Grow(plan_, With(10'000))) << "it is whole";
  EXPECT_EQ(cache.GiveBack(plan_, With(300)), std::nullopt) << "nothing was cut";
  EXPECT_FALSE(cache.Shrink(10));
  EXPECT_TRUE(cache.Shrink(4));
  EXPECT_EQ(cache.num_blocks(), 4u);
  EXPECT_EQ(cache.whole()[kPageGroup], 10u);
  EXPECT_TRUE(cache.Grow(plan_, With(10'000)));
  EXPECT_EQ(cache.num_blocks(), 10u);
  EXPECT_EQ(cache.GiveBack(plan_, With(10'000)), std::nullopt) << "all fits";
  EXPECT_EQ(cache.GiveBack(plan_, With(300)), 5u);
  EXPECT_EQ(cache.GiveBack(plan_, With(260)), std::nullopt) << "not below its least";
}

TEST_F(CacheSizeTest, AReplacedCacheWasNeverCut) {
  CacheSize cache(sizes_);
  EXPECT_TRUE(cache.Shrink(4));
  cache.Replace(cache.whole().Resized(20));
  EXPECT_EQ(cache.num_blocks(), 20u);
  EXPECT_EQ(cache.whole()[kPageGroup], 20u);
  EXPECT_EQ(cache.GiveBack(plan_, With(300)), std::nullopt);
}

}  // namespace
}  // namespace gyre
