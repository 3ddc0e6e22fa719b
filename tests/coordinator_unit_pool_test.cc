// Units that are found by their content: who owns them, and which stay.
#include "coordinator/engine/unit_pool.h"

#include <gtest/gtest.h>

namespace gyre {
namespace {

TEST(UnitPool, ASnapshotIsKeptUntilItsPlaceIsNeeded) {
  UnitPool slots("unit", 3);
  const BlockId own = *slots.Allocate(), a = *slots.Allocate(true), b = *slots.Allocate(true);
  EXPECT_EQ(slots.number(own), 0u);
  EXPECT_NE(slots.number(a), 0u);
  EXPECT_NE(slots.number(a), slots.number(b));
  EXPECT_FALSE(slots.Allocate());
  slots.Keep(11, a);
  slots.Keep(12, b);
  EXPECT_EQ(slots.available(), 2u);
  EXPECT_EQ(slots.published(), 2u);
  // The first is used again, so the second is the longest unused.
  EXPECT_EQ(slots.Take(11), a);
  EXPECT_EQ(slots.available(), 1u);
  slots.Release(a);
  EXPECT_EQ(*slots.Allocate(), b);
  EXPECT_FALSE(slots.Has(12));
  EXPECT_TRUE(slots.Has(11));
  EXPECT_EQ(slots.number(b), 0u) << "it is no snapshot any more";
  EXPECT_EQ(slots.Live(), (std::vector<BlockId>{0, 1, 2}));
  EXPECT_TRUE(slots.CheckIntegrity(std::vector<uint32_t>{1, 0, 1}).ok());
  EXPECT_FALSE(slots.CheckIntegrity(std::vector<uint32_t>{1, 1, 1}).ok());
  slots.Release(own);
  slots.Release(b);
  EXPECT_EQ(slots.Live(), std::vector<BlockId>{a});
  slots.Forget(3);
  EXPECT_FALSE(slots.Has(11));
  EXPECT_EQ(slots.available(), 3u);
}

TEST(UnitPool, AWrongCallIsAnErrorAndChangesNothing) {
  UnitPool pool("unit", 3);
  const BlockId a = *pool.Allocate(), b = *pool.Allocate();
  pool.Publish(11, a);
  pool.CheckWritten(a);
  pool.Release(b);
  EXPECT_TRUE(pool.TakeFault().ok());
  const std::vector<uint32_t> owners{1, 0, 0};
  const auto fault = [&](const auto& call) {
    call();
    EXPECT_TRUE(absl::IsInternal(pool.CheckIntegrity())) << "it is told until it is taken";
    const Status told = pool.TakeFault();
    EXPECT_TRUE(pool.CheckIntegrity(owners).ok()) << pool.CheckIntegrity(owners);
    EXPECT_EQ(pool.available(), 2u);
    return Message(told);
  };
  EXPECT_EQ(fault([&] { EXPECT_FALSE(pool.Release(b)); }), "unit 1 of 3 is given back, and it has no owner");
  EXPECT_EQ(fault([&] { pool.Release(9); }), "unit 9 of 3 is given back, and it has no owner");
  EXPECT_EQ(fault([&] { pool.CheckWritten(b); }), "unit 1 of 3 is about to be written, and it has 0 owners");
  EXPECT_EQ(fault([&] { pool.Publish(12, b); }), "unit 1 of 3 is published, and it has 0 owners and no content");
  EXPECT_EQ(fault([&] { pool.CheckWritten(kNoBlock); }).substr(0, 5), "unit ");
  EXPECT_EQ(fault([&] { pool.Publish(12, a); }), "unit 0 of 3 is published, and it has 1 owners and a content");
}

TEST(UnitPool, AUnitOfTwoSequencesMustNotBeWritten) {
  UnitPool pool("page", 2);
  const BlockId a = *pool.Allocate();
  pool.Publish(11, a);
  EXPECT_EQ(pool.Take(11), a);
  pool.CheckWritten(a);
  EXPECT_EQ(Message(pool.TakeFault()), "page 0 of 2 is about to be written, and it has 2 owners");
}

TEST(UnitPool, WhoeverAsksIsToldOfEachContentThatLeaves) {
  std::vector<ChainId> gone;
  UnitPool pool("page", 2, [&gone](ChainId chain) { gone.push_back(chain); });
  for (ChainId chain : {21, 22}) pool.Publish(chain, *pool.Allocate(), chain);
  pool.Release(0);
  pool.Release(1);
  EXPECT_TRUE(gone.empty());
  EXPECT_EQ(*pool.Allocate(), 0u);
  EXPECT_EQ(gone, std::vector<ChainId>{21});
  pool.ForgetAfter(21);
  EXPECT_EQ(gone, (std::vector<ChainId>{21, 22}));
  pool.Publish(23, 0);
  pool.Release(0);
  pool.ForgetUnit(0);
  pool.Publish(24, *pool.Allocate());
  pool.Forget(2);
  EXPECT_EQ(gone, (std::vector<ChainId>{21, 22, 23, 24}));
}

TEST(UnitPool, OneSnapshotOfAContent) {
  UnitPool slots("unit", 2);
  const BlockId a = *slots.Allocate(true), b = *slots.Allocate(true);
  slots.Keep(5, a);
  slots.Keep(5, b);
  EXPECT_EQ(slots.published(), 1u);
  EXPECT_EQ(slots.Take(5), a);
  EXPECT_EQ(*slots.Allocate(), b) << "the second one is free";
  EXPECT_FALSE(slots.Allocate()) << "a snapshot that is copied from is not given away";
  slots.Keep(kNoChain, b);
  EXPECT_EQ(*slots.Allocate(), b) << "a copy without a name is free";
}

TEST(UnitPool, WhatIsMarkedEvictFirstGoesFirst) {
  UnitPool blocks("unit", 3);
  for (ChainId chain : {21, 22, 23}) blocks.Publish(chain, *blocks.Allocate());
  EXPECT_TRUE(blocks.Release(0));
  EXPECT_TRUE(blocks.Release(1, true));
  EXPECT_TRUE(blocks.Release(2, true));
  EXPECT_EQ(blocks.kept(), 3u);
  EXPECT_EQ(*blocks.Allocate(), 1u) << "the longest unused of the evict_first ones, though block 0 was released before";
  EXPECT_FALSE(blocks.Has(22));
  EXPECT_EQ(blocks.Take(23), 2u);
  EXPECT_EQ(blocks.Take(23), 2u);
  EXPECT_FALSE(blocks.Release(2)) << "it has another owner";
  EXPECT_EQ(*blocks.Allocate(), 0u);
  EXPECT_FALSE(blocks.Allocate());
  EXPECT_TRUE(blocks.CheckIntegrity(std::vector<uint32_t>{1, 1, 1}).ok());
  EXPECT_EQ(blocks.Reclaim(std::vector<uint32_t>{1, 0, 1}), 1u);
  EXPECT_EQ(*blocks.Allocate(), 1u);
}

}  // namespace
}  // namespace gyre
