// Plans and the memory of members: what a lost plan leaves, a KV cache that is cut and grows, pools that had grown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/serving_cluster.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using testing::ClusterWorld;
using ::testing::HasSubstr;

class ClusterMemoryTest : public testing::ServingClusterTest {};

// Memory that a lost plan has left in the workers counts, and is freed if it is in the way.
TEST_F(ClusterMemoryTest, WhatALostPlanLeavesIsCountedAndDropped) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 2));
  w.Join("w1", {.memory = 700});  // 5 layers of 100 and 10, and a little
  w.Join("w2", {.memory = 700});
  w.Advance(seconds(1));
  ASSERT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.member("w2").runs, (LayerRange{4, 8}));
  EXPECT_GT(w.status().members[0].weight_bytes, 0u) << "people see what it holds";
  // Now it would have to hold both halves.
  w.Join("w3", {.memory = 700, .preference = LayerRange{4, 8}});
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w2=0-3,w3=4-7");
  EXPECT_EQ(w.member("w2").runs, (LayerRange{0, 4}));
}

TEST_F(ClusterMemoryTest, AMemberThatDoesNotDropThemIsTooSmall) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 2));
  w.Join("w1", {.memory = 700});
  w.Join("w2", {.memory = 650});
  w.Advance(seconds(1));
  w.Leave("w1");
  w.member("w2").silent = true;
  w.Join("w3", {.memory = 700, .preference = LayerRange{4, 8}});
  w.Advance(seconds(5));
  EXPECT_TRUE(w.status().plan == std::nullopt);
  const uint64_t ask = w.Resize("w2=0-3,w3=4-7");
  EXPECT_THAT(Message(w.answer(ask).status()), HasSubstr("told to drop what it holds of a lost plan, try again"));
  w.Advance(seconds(20));
  w.Join("w4", {.memory = 700});
  w.Advance(seconds(20));
  EXPECT_EQ(w.ranges(), "w4=0-3,w3=4-7");
  EXPECT_THAT(w.text(), HasSubstr("w2 is left out: w2 needs"));
}

TEST_F(ClusterMemoryTest, TheCacheIsCutByTheFirstPlanOverWorkersAndGrowsAgain) {
  ClusterPolicy policy = ClusterWorld::Policy(8, 1);
  ClusterWorld& w = New(policy);
  w.JoinLocal();
  w.Advance(seconds(1));
  EXPECT_EQ(w.num_blocks, 10u);
  w.Join("w1", {.memory = 4 * 100 + 1 * 100 + 5 * 5});  // a layer's room for a resize
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,local=4-7");
  EXPECT_EQ(w.num_blocks, 5u);
  EXPECT_THAT(w.engine.calls, ::testing::IsSupersetOf({"shrink 5", "new 2"}));
  w.Join("w2");
  w.Resize("w2=0-3,local=4-7");
  w.Advance(seconds(1));
  EXPECT_EQ(w.num_blocks, 5u) << "while the small one holds layers";
  EXPECT_THAT(w.engine.calls, ::testing::Contains("grow 10"));
  EXPECT_TRUE(w.logged("the KV cache grows from 80 to 160 tokens"));
  ASSERT_TRUE(w.record.has_value());
  EXPECT_EQ(w.record->num_blocks, 10u) << "a coordinator that takes over begins with it";
  // It holds its four layers with the whole cache, if not one more beside them.
  const uint64_t resize = w.Resize("w1=0-3,local=4-7");
  w.Advance(seconds(1));
  EXPECT_TRUE(w.answer(resize).ok()) << w.answer(resize).status();
}

// Its user gives the cache another size while it serves: the same ranges, pools that begin anew.
TEST_F(ClusterMemoryTest, TheCacheIsResizedByItsUser) {
  ClusterWorld& w = Serving(2, {.memory = 700});
  EXPECT_EQ(w.status().num_blocks, 10u);
  const auto expect = [&w](uint64_t tokens, uint32_t blocks) {
    w.engine.calls.clear();
    w.events.clear();
    const uint64_t ask = w.ResizeCache(tokens);
    w.Advance(seconds(1));
    ASSERT_TRUE(w.answer(ask).ok()) << w.answer(ask).status();
    EXPECT_EQ(w.answer(ask)->kv_tokens, blocks * 16u);
    EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
    EXPECT_EQ(w.status().num_blocks, blocks);
    EXPECT_TRUE(w.member("w1").ran->fresh);
    EXPECT_EQ(w.member("w1").ran->memory[kPageGroup], blocks);
    EXPECT_EQ(w.record->num_blocks, blocks);
    EXPECT_THAT(w.engine.calls, ::testing::ElementsAre("drain", fmt::format("cache {}", blocks),
                                                       fmt::format("new {}", w.status().plan->epoch.number)));
    EXPECT_EQ(w.events[0].kind, EventKind::kCache);
    EXPECT_THAT(w.events[0].text, HasSubstr(fmt::format("the KV cache holds {} tokens", blocks * 16)));
  };
  expect(55 * 16, 55);  // four layers of 100 and 55
  expect(6 * 16 - 3, 6);
  // What was asked for stays: it does not grow back.
  w.Join("w3", {.memory = 700});
  w.Resize("w1=0-2,w2=3-5,w3=6-7");
  w.Advance(seconds(2));
  EXPECT_EQ(w.status().num_blocks, 6u);
  EXPECT_EQ(w.problem(), "");
}

TEST_F(ClusterMemoryTest, ACacheThatNobodyHoldsIsRefusedWithTheNumbers) {
  ClusterWorld& w = Serving(2, {.memory = 700});
  EXPECT_THAT(Message(w.answer(w.ResizeCache(1000 * 16)).status()), HasSubstr("w1 needs"));
  EXPECT_THAT(Message(w.answer(w.ResizeCache(0)).status()), HasSubstr("expected 1 to"));
  EXPECT_THAT(Message(w.answer(w.ResizeCache(UINT64_MAX)).status()), HasSubstr("expected 1 to"));
  EXPECT_TRUE(w.answer(w.ResizeCache(160)).ok()) << "it is so large already";
  EXPECT_TRUE(w.begun.empty());
  w.Leave("w1");
  w.Leave("w2");
  EXPECT_THAT(Message(w.answer(w.ResizeCache(320)).status()), HasSubstr("no plan serves"));
}

// The part by which the cache grew for a worker is removed when this worker leaves.
TEST_F(ClusterMemoryTest, ADrainMayCutACacheThatHasGrown) {
  ClusterPolicy policy = ClusterWorld::Policy(8, 2);
  for (auto& memory : policy.sizes.memory) memory.unit = 10;
  ClusterWorld& w = New(policy);
  const MemberInfo small{.memory = 5 * (100 + 5 * 10)};  // a layer more than four, each with half of its pages
  for (const char* name : {"w1", "w2"}) w.Join(name, small);
  w.Advance(seconds(1));
  EXPECT_EQ(w.num_blocks, 5u);
  for (const char* name : {"w3", "w4"}) w.Join(name, small);
  w.Resize("w1=0-1,w3=2-3,w4=4-5,w2=6-7");
  w.Advance(seconds(1));
  EXPECT_THAT(w.engine.calls, ::testing::Contains("grow 10"));
  ASSERT_EQ(w.ranges(), "w1=0-1,w3=2-3,w4=4-5,w2=6-7");
  for (const char* name : {"w3", "w4"}) {
    const uint64_t drain = w.Drain(name);
    w.Advance(seconds(1));
    EXPECT_TRUE(w.answer(drain).ok()) << name << w.answer(drain).status();
  }
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  EXPECT_EQ(w.num_blocks, 8u) << "what four layers leave, of what is had and what comes";
  EXPECT_THAT(w.engine.calls, ::testing::Contains("shrink 8"));
  EXPECT_EQ(w.problem(), "");
}

// Until the new plan serves, the pools are there that had grown: a worker that is full of them has no room for the
// weights of more layers, however few blocks the new plan has.
TEST_F(ClusterMemoryTest, PoolsThatHadGrownCountUntilTheyAreGone) {
  for (const uint64_t memory : {597, 599}) {
    SCOPED_TRACE(memory);
    ClusterPolicy policy = ClusterWorld::Policy(8, 2);
    policy.sizes.counts[kPageGroup] = 200;
    ClusterWorld& w = New(policy);
    for (const char* name : {"w1", "w2"}) w.Join(name, {.memory = memory});
    w.Advance(seconds(1));
    EXPECT_EQ(w.num_blocks, 19u);
    w.Join("w3", {.memory = 4000});
    w.Resize("w1=0-1,w3=2-5,w2=6-7");
    w.Advance(seconds(1));
    EXPECT_THAT(w.engine.calls, ::testing::Contains("grow 99")) << "a layer takes 100 and 99, and there is room for 3";
    // Four layers of 100 beside two with 99 of pages.
    const uint64_t drain = w.Drain("w3");
    w.Advance(seconds(1));
    EXPECT_EQ(w.answer(drain).ok(), memory >= 598) << w.answer(drain).status();
    if (memory < 598) {
      EXPECT_THAT(Message(w.answer(drain).status()), HasSubstr("beside"));
    } else {
      EXPECT_THAT(w.engine.calls, ::testing::Contains("shrink 49")) << "what four layers leave afterwards";
    }
    EXPECT_EQ(w.problem(), "");
  }
}

}  // namespace
}  // namespace gyre
