// Slots of recurrent state: who owns them, and which snapshots stay.
#include "coordinator/state_slots.h"

#include <gtest/gtest.h>

namespace gyre {
namespace {

TEST(StateSlots, ASnapshotIsKeptUntilItsPlaceIsNeeded) {
  StateSlots slots(3);
  const BlockId own = *slots.Allocate(), a = *slots.Allocate(true), b = *slots.Allocate(true);
  EXPECT_EQ(slots.number(own), 0u);
  EXPECT_NE(slots.number(a), 0u);
  EXPECT_NE(slots.number(a), slots.number(b));
  EXPECT_FALSE(slots.Allocate());
  slots.Keep(11, a);
  slots.Keep(12, b);
  EXPECT_EQ(slots.available(), 2u);
  EXPECT_EQ(slots.snapshots(), 2u);
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
  slots.Forget();
  EXPECT_FALSE(slots.Has(11));
  EXPECT_EQ(slots.available(), 3u);
}

TEST(StateSlots, OneSnapshotOfAContent) {
  StateSlots slots(2);
  const BlockId a = *slots.Allocate(true), b = *slots.Allocate(true);
  slots.Keep(5, a);
  slots.Keep(5, b);
  EXPECT_EQ(slots.snapshots(), 1u);
  EXPECT_EQ(slots.Take(5), a);
  EXPECT_EQ(*slots.Allocate(), b) << "the second one is free";
  EXPECT_FALSE(slots.Allocate()) << "a snapshot that is copied from is not given away";
  slots.Keep(kNoChain, b);
  EXPECT_EQ(*slots.Allocate(), b) << "a copy without a name is free";
}

}  // namespace
}  // namespace gyre
