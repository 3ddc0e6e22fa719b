// How large the KV cache is, and for how many sequences.
#include "runtime/kv_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gyre {
namespace {

using ::testing::HasSubstr;

// A model of 8,192 tokens, 1 MiB for each, and 100 GiB free.
KvWish Wish() {
  return {.model_context = 8192, .parallel = 8, .bytes_per_token = 1 << 20, .memory = uint64_t{100} << 30};
}

KvChoice Chosen(const KvWish& wish) {
  const auto choice = ChooseKv(wish);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.value_or(KvChoice{});
}

TEST(KvChoice, WithMemoryEachSequenceHasTheModelsContext) {
  KvWish wish = Wish();
  wish.bytes_per_token = 1 << 16;
  const KvChoice c = Chosen(wish);
  EXPECT_EQ(c.context, 8192u);
  EXPECT_EQ(c.num_blocks, 8 * 8192 / 16u);
  EXPECT_EQ(c.max_sequences, 64u);
  EXPECT_FALSE(c.cut);
  EXPECT_THAT(c.sentence, HasSubstr("65536 tokens, 4.00 GiB (8 times the context of 8192)"));
  EXPECT_THAT(c.sentence, HasSubstr("64 sequences at once, 8 of them with the whole context"));
}

TEST(KvChoice, TheCacheIsAtMostHalfOfTheFreeMemory) {
  const KvChoice c = Chosen(Wish());
  EXPECT_EQ(c.num_blocks, 50 * 1024 / 16u);
  EXPECT_EQ(c.context, 8192u);
  EXPECT_TRUE(c.cut);
  EXPECT_THAT(c.sentence, HasSubstr("half of the free memory, where 8 times the context of 8192 would be 65536"));
  EXPECT_THAT(c.sentence, HasSubstr("6 of them with the whole context"));
}

TEST(KvChoice, AContextThatNobodyAskedForIsNoLongerThanTheCache) {
  KvWish wish = Wish();
  wish.memory = uint64_t{8} << 30;
  EXPECT_EQ(Chosen(wish).context, 4096u);
  EXPECT_EQ(Chosen(wish).num_blocks, 4096 / 16u);
  wish.ctx = 6000;
  EXPECT_EQ(Chosen(wish).context, 6000u);
  wish.ctx = 0;
  wish.tokens = 1000;
  EXPECT_EQ(Chosen(wish).context, 1008u) << "whole blocks";
  EXPECT_FALSE(Chosen(wish).cut);
}

TEST(KvChoice, WhatIsAskedForIsTaken) {
  KvWish wish = Wish();
  wish.tokens = uint64_t{200} << 10;  // 200 GiB
  wish.max_sequences = 7;
  EXPECT_EQ(Chosen(wish).num_blocks, 200 * 1024 / 16u);
  EXPECT_EQ(Chosen(wish).max_sequences, 7u);
  wish.max_sequences = 0;
  wish.parallel = 100;
  EXPECT_EQ(Chosen(wish).max_sequences, 100u);
  wish.reserve = true;
  EXPECT_THAT(Chosen(wish).sentence, HasSubstr("25 fit, a whole context reserved for each"));
}

TEST(KvChoice, UnknownMemoryCutsNothingAndNoMemoryLeavesABlock) {
  KvWish wish = Wish();
  wish.memory = 0;
  EXPECT_EQ(Chosen(wish).num_blocks, 8 * 8192 / 16u);
  wish.memory = 10 << 20;
  EXPECT_EQ(Chosen(wish).num_blocks, 1u);
  EXPECT_EQ(Chosen(wish).context, 16u);
}

TEST(KvChoice, MoreThanBlocksCanCountIsRefused) {
  KvWish wish = Wish();
  wish.tokens = uint64_t{1} << 40;
  EXPECT_TRUE(absl::IsInvalidArgument(ChooseKv(wish).status()));
}

// Recurrent states: one for each sequence and as many for snapshots, in a quarter of the memory.
TEST(KvChoice, SlotsOfRecurrentState) {
  KvWish wish = Wish();
  EXPECT_EQ(Chosen(wish).num_slots, 0u);
  wish.state_bytes = 1 << 20;
  wish.memory = 0;
  wish.max_sequences = 10;
  EXPECT_EQ(Chosen(wish).num_slots, 20u);
  EXPECT_EQ(Chosen(wish).max_sequences, 10u);
  wish.memory = uint64_t{24} << 20;
  EXPECT_EQ(Chosen(wish).num_slots, 6u);
  EXPECT_EQ(Chosen(wish).max_sequences, 3u);
  wish.memory = 1;
  EXPECT_EQ(Chosen(wish).num_slots, 2u) << "one sequence runs, and a snapshot of it is kept";
  EXPECT_EQ(Chosen(wish).max_sequences, 1u);
}

}  // namespace
}  // namespace gyre
