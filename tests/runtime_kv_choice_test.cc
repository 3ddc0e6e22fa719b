// The size of the KV cache, and the number of sequences.
#include "runtime/kv_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gyre {
namespace {

using ::testing::HasSubstr;

// A model of 8,192 tokens, 1 MiB for each, and 100 GiB free.
KvWish Wish() {
  return {.model_context = 8192, .parallel = 8, .unit_bytes = {16 << 20}, .memory = uint64_t{100} << 30};
}

KvChoice Chosen(const KvWish& wish) {
  const auto choice = ChooseKv(wish);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.value_or(KvChoice{});
}

TEST(KvChoice, WithMemoryEachSequenceHasTheModelsContext) {
  KvWish wish = Wish();
  wish.unit_bytes[kPageGroup] = 16 << 16;
  const KvChoice c = Chosen(wish);
  EXPECT_EQ(c.context, 8192u);
  EXPECT_EQ(c.memory[kPageGroup], 8 * 8192 / 16u);
  EXPECT_EQ(c.max_sequences, 64u);
  EXPECT_FALSE(c.cut);
  EXPECT_THAT(c.sentence, HasSubstr("65536 tokens, 4.00 GiB (8 times the context of 8192)"));
  EXPECT_THAT(c.sentence, HasSubstr("64 sequences at once, 8 of them with the whole context"));
}

TEST(KvChoice, TheCacheIsAtMostHalfOfTheFreeMemory) {
  const KvChoice c = Chosen(Wish());
  EXPECT_EQ(c.memory[kPageGroup], 50 * 1024 / 16u);
  EXPECT_EQ(c.context, 8192u);
  EXPECT_TRUE(c.cut);
  EXPECT_THAT(c.sentence, HasSubstr("half of the free memory, where 8 times the context of 8192 would be 65536"));
  EXPECT_THAT(c.sentence, HasSubstr("6 of them with the whole context"));
}

TEST(KvChoice, AContextThatNobodyAskedForIsNoLongerThanTheCache) {
  KvWish wish = Wish();
  wish.memory = uint64_t{8} << 30;
  EXPECT_EQ(Chosen(wish).context, 4096u);
  EXPECT_EQ(Chosen(wish).memory[kPageGroup], 4096 / 16u);
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
  EXPECT_EQ(Chosen(wish).memory[kPageGroup], 200 * 1024 / 16u);
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
  EXPECT_EQ(Chosen(wish).memory[kPageGroup], 8 * 8192 / 16u);
  wish.memory = 10 << 20;
  EXPECT_EQ(Chosen(wish).memory[kPageGroup], 1u);
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
  EXPECT_EQ(Chosen(wish).memory[kSlotGroup], 0u);
  wish.unit_bytes[kSlotGroup] = 1 << 20;
  wish.memory = 0;
  wish.max_sequences = 10;
  EXPECT_EQ(Chosen(wish).memory[kSlotGroup], 20u);
  EXPECT_EQ(Chosen(wish).max_sequences, 10u);
  wish.memory = uint64_t{24} << 20;
  EXPECT_EQ(Chosen(wish).memory[kSlotGroup], 6u);
  EXPECT_EQ(Chosen(wish).max_sequences, 3u);
  wish.memory = 1;
  EXPECT_EQ(Chosen(wish).memory[kSlotGroup], 2u) << "one sequence runs, and a snapshot of it is kept";
  EXPECT_EQ(Chosen(wish).max_sequences, 1u);
}

// Layers with a window: an eighth of the blocks, and enough for each whole context.
TEST(KvChoice, BlocksOfLayersWithAWindow) {
  KvWish wish{.model_context = 32768, .parallel = 1, .unit_bytes = {16 * (4 << 10)}};
  EXPECT_EQ(Chosen(wish).memory[kWindowGroup], 0u);
  wish.window = 512;
  wish.unit_bytes[kWindowGroup] = 16 * (22 << 10);
  EXPECT_EQ(Chosen(wish).memory[kPageGroup], 2048u);
  EXPECT_EQ(Chosen(wish).memory[kWindowGroup], 256u);
  EXPECT_EQ(Chosen(wish).memory.least[kWindowGroup], (511u + 256 + 15) / 16 + 1);
  EXPECT_THAT(Chosen(wish).sentence, HasSubstr("32768 tokens, 0.21 GiB (the context of 32768)"));
  EXPECT_THAT(Chosen(wish).sentence, HasSubstr("; layers with a window of 512 have 4096 tokens"));
  wish.parallel = 8;
  EXPECT_EQ(Chosen(wish).memory[kWindowGroup], 2048u);
  // More sequences of shorter contexts: each has its window and two chunks.
  wish.ctx = 2048;
  wish.parallel = 16;
  EXPECT_EQ(Chosen(wish).memory[kWindowGroup], 16 * ((511u + 512 + 15) / 16 + 1));
  wish.parallel = 1;
  EXPECT_EQ(Chosen(wish).memory[kWindowGroup], 65u);
  wish.ctx = 512;
  EXPECT_EQ(Chosen(wish).memory[kWindowGroup], Chosen(wish).memory[kPageGroup]) << "no window ever moves on";
  wish.ctx = 32768;
  wish.chunk = 0;
  EXPECT_EQ(Chosen(wish).memory[kWindowGroup], 2048u) << "whole prompts";
  wish.chunk = 256;
  wish.max_sequences = 2;
  EXPECT_EQ(Chosen(wish).memory[kWindowGroup], 130u) << "no more than two sequences can use";
}

// Half of the memory holds both kinds of layers.
TEST(KvChoice, WindowsAndTheMemory) {
  KvWish wish{.model_context = 32768, .parallel = 8, .unit_bytes = {16 * (4 << 10)}};
  wish.window = 512;
  wish.unit_bytes[kWindowGroup] = 16 * (22 << 10);
  wish.memory = uint64_t{1} << 30;
  const KvChoice c = Chosen(wish);
  EXPECT_TRUE(c.cut);
  EXPECT_EQ(c.memory[kWindowGroup], (c.memory[kPageGroup] + 7) / 8);
  EXPECT_LE(c.memory[kPageGroup] * wish.unit_bytes[kPageGroup] + c.memory[kWindowGroup] * wish.unit_bytes[kWindowGroup],
            wish.memory / 2);
  EXPECT_GT(c.memory[kPageGroup], 4800u);
  // Where all layers have a window, the others' blocks take nothing.
  wish.unit_bytes[kPageGroup] = 0;
  EXPECT_GT(Chosen(wish).memory[kPageGroup], 2 * c.memory[kPageGroup]);
}

}  // namespace
}  // namespace gyre
