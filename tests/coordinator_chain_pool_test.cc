// Units that are found by their content: who owns them, and which stay.
#include "coordinator/chain_pool.h"

#include <gtest/gtest.h>

namespace gyre {
namespace {

TEST(ChainPool, ASnapshotIsKeptUntilItsPlaceIsNeeded) {
  ChainPool slots(3);
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
  EXPECT_TRUE(slots.CheckIntegrity("slot", std::vector<uint32_t>{1, 0, 1}).ok());
  EXPECT_FALSE(slots.CheckIntegrity("slot", std::vector<uint32_t>{1, 1, 1}).ok());
  slots.Release(own);
  slots.Release(b);
  EXPECT_EQ(slots.Live(), std::vector<BlockId>{a});
  slots.Forget(3);
  EXPECT_FALSE(slots.Has(11));
  EXPECT_EQ(slots.available(), 3u);
}

TEST(ChainPool, OneSnapshotOfAContent) {
  ChainPool slots(2);
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

TEST(ChainPool, WhatWasUsedInPassingGoesFirst) {
  ChainPool blocks(3);
  for (ChainId chain : {21, 22, 23}) blocks.Publish(chain, *blocks.Allocate());
  EXPECT_TRUE(blocks.Release(0));
  EXPECT_TRUE(blocks.Release(1, true));
  EXPECT_TRUE(blocks.Release(2, true));
  EXPECT_EQ(blocks.kept(), 3u);
  EXPECT_EQ(*blocks.Allocate(), 1u) << "the longest unused of the passing ones, though block 0 was released before";
  EXPECT_FALSE(blocks.Has(22));
  EXPECT_EQ(blocks.Take(23), 2u);
  EXPECT_EQ(blocks.Take(23), 2u);
  EXPECT_FALSE(blocks.Release(2)) << "it has another owner";
  EXPECT_EQ(*blocks.Allocate(), 0u);
  EXPECT_FALSE(blocks.Allocate());
  EXPECT_TRUE(blocks.CheckIntegrity("block", std::vector<uint32_t>{1, 1, 1}).ok());
  EXPECT_EQ(blocks.Reclaim(std::vector<uint32_t>{1, 0, 1}), 1u);
  EXPECT_EQ(*blocks.Allocate(), 1u);
}

}  // namespace
}  // namespace gyre
