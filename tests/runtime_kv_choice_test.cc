// The size of the KV cache, and the number of sequences.
#include "runtime/kv_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gyre {
namespace {

using ::testing::HasSubstr;

// A model of 8,192 tokens, 1 MiB for each, and 100 GiB free.
KvPreference Preference() {
  return {.model_context = 8192, .parallel = 8, .unit_bytes = {16 << 20}, .memory = uint64_t{100} << 30};
}

KvChoice Chosen(const KvPreference& preference) {
  const auto choice = ChooseKv(preference);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.value_or(KvChoice{});
}

TEST(KvChoice, WithMemoryEachSequenceHasTheModelsContext) {
  KvPreference preference = Preference();
  preference.unit_bytes[kPageGroup] = 16 << 16;
  const KvChoice c = Chosen(preference);
  EXPECT_EQ(c.context, 8192u);
  EXPECT_EQ(c.memory[kPageGroup], 8 * 8192 / 16u);
  EXPECT_EQ(c.max_sequences, 64u);
  EXPECT_FALSE(c.cut);
  EXPECT_THAT(c.sentence, HasSubstr("65536 tokens, 4.00 GiB (8 times the context of 8192)"));
  EXPECT_THAT(c.sentence, HasSubstr("64 sequences at once, 8 of them with the whole context"));
}

TEST(KvChoice, TheCacheIsAtMostHalfOfTheFreeMemory) {
  const KvChoice c = Chosen(Preference());
  EXPECT_EQ(c.memory[kPageGroup], 50 * 1024 / 16u);
  EXPECT_EQ(c.context, 8192u);
  EXPECT_TRUE(c.cut);
  EXPECT_THAT(c.sentence, HasSubstr("half of the free memory, where 8 times the context of 8192 would be 65536"));
  EXPECT_THAT(c.sentence, HasSubstr("6 of them with the whole context"));
}

TEST(KvChoice, AContextThatNobodyAskedForIsNoLongerThanTheCache) {
  KvPreference preference = Preference();
  preference.memory = uint64_t{8} << 30;
  EXPECT_EQ(Chosen(preference).context, 4096u);
  EXPECT_EQ(Chosen(preference).memory[kPageGroup], 4096 / 16u);
  preference.ctx = 6000;
  EXPECT_EQ(Chosen(preference).context, 6000u);
  preference.ctx = 0;
  preference.tokens = 1000;
  EXPECT_EQ(Chosen(preference).context, 1008u) << "whole blocks";
  EXPECT_FALSE(Chosen(preference).cut);
}

TEST(KvChoice, WhatIsAskedForIsTaken) {
  KvPreference preference = Preference();
  preference.tokens = uint64_t{200} << 10;  // 200 GiB
  preference.max_sequences = 7;
  EXPECT_EQ(Chosen(preference).memory[kPageGroup], 200 * 1024 / 16u);
  EXPECT_EQ(Chosen(preference).max_sequences, 7u);
  preference.max_sequences = 0;
  preference.parallel = 100;
  EXPECT_EQ(Chosen(preference).max_sequences, 100u);
  preference.reserve = true;
  EXPECT_THAT(Chosen(preference).sentence, HasSubstr("25 fit, a whole context reserved for each"));
}

TEST(KvChoice, UnknownMemoryCutsNothingAndNoMemoryLeavesABlock) {
  KvPreference preference = Preference();
  preference.memory = 0;
  EXPECT_EQ(Chosen(preference).memory[kPageGroup], 8 * 8192 / 16u);
  preference.memory = 10 << 20;
  EXPECT_EQ(Chosen(preference).memory[kPageGroup], 1u);
  EXPECT_EQ(Chosen(preference).context, 16u);
}

TEST(KvChoice, MoreThanBlocksCanCountIsRefused) {
  KvPreference preference = Preference();
  preference.tokens = uint64_t{1} << 40;
  EXPECT_TRUE(absl::IsInvalidArgument(ChooseKv(preference).status()));
}

// Recurrent states: one for each sequence and as many for snapshots, in a quarter of the memory.
TEST(KvChoice, SlotsOfRecurrentState) {
  KvPreference preference = Preference();
  EXPECT_EQ(Chosen(preference).memory[kSlotGroup], 0u);
  preference.unit_bytes[kSlotGroup] = 1 << 20;
  preference.memory = 0;
  preference.max_sequences = 10;
  EXPECT_EQ(Chosen(preference).memory[kSlotGroup], 20u);
  EXPECT_EQ(Chosen(preference).max_sequences, 10u);
  preference.memory = uint64_t{24} << 20;
  EXPECT_EQ(Chosen(preference).memory[kSlotGroup], 6u);
  EXPECT_EQ(Chosen(preference).max_sequences, 3u);
  preference.memory = 1;
  EXPECT_EQ(Chosen(preference).memory[kSlotGroup], 2u) << "one sequence runs, and a snapshot of it is kept";
  EXPECT_EQ(Chosen(preference).max_sequences, 1u);
}

// Layers with a window: an eighth of the blocks, and enough for each whole context.
TEST(KvChoice, BlocksOfLayersWithAWindow) {
  KvPreference preference{.model_context = 32768, .parallel = 1, .unit_bytes = {16 * (4 << 10)}};
  EXPECT_EQ(Chosen(preference).memory[kWindowGroup], 0u);
  preference.window = 512;
  preference.unit_bytes[kWindowGroup] = 16 * (22 << 10);
  EXPECT_EQ(Chosen(preference).memory[kPageGroup], 2048u);
  EXPECT_EQ(Chosen(preference).memory[kWindowGroup], 256u);
  EXPECT_EQ(Chosen(preference).memory.least[kWindowGroup], (511u + 256 + 15) / 16 + 1);
  EXPECT_THAT(Chosen(preference).sentence, HasSubstr("32768 tokens, 0.21 GiB (the context of 32768)"));
  EXPECT_THAT(Chosen(preference).sentence, HasSubstr("; layers with a window of 512 have 4096 tokens"));
  preference.parallel = 8;
  EXPECT_EQ(Chosen(preference).memory[kWindowGroup], 2048u);
  // More sequences of shorter contexts: each has its window and two chunks.
  preference.ctx = 2048;
  preference.parallel = 16;
  EXPECT_EQ(Chosen(preference).memory[kWindowGroup], 16 * ((511u + 512 + 15) / 16 + 1));
  preference.parallel = 1;
  EXPECT_EQ(Chosen(preference).memory[kWindowGroup], 65u);
  preference.ctx = 512;
  EXPECT_EQ(Chosen(preference).memory[kWindowGroup], Chosen(preference).memory[kPageGroup])
      << "no window ever moves on";
  preference.ctx = 32768;
  preference.chunk = 0;
  EXPECT_EQ(Chosen(preference).memory[kWindowGroup], 2048u) << "whole prompts";
  preference.chunk = 256;
  preference.max_sequences = 2;
  EXPECT_EQ(Chosen(preference).memory[kWindowGroup], 130u) << "no more than two sequences can use";
}

// Half of the memory holds both kinds of layers.
TEST(KvChoice, WindowsAndTheMemory) {
  KvPreference preference{.model_context = 32768, .parallel = 8, .unit_bytes = {16 * (4 << 10)}};
  preference.window = 512;
  preference.unit_bytes[kWindowGroup] = 16 * (22 << 10);
  preference.memory = uint64_t{1} << 30;
  const KvChoice c = Chosen(preference);
  EXPECT_TRUE(c.cut);
  EXPECT_EQ(c.memory[kWindowGroup], (c.memory[kPageGroup] + 7) / 8);
  EXPECT_LE(c.memory[kPageGroup] * preference.unit_bytes[kPageGroup] +
                c.memory[kWindowGroup] * preference.unit_bytes[kWindowGroup],
            preference.memory / 2);
  EXPECT_GT(c.memory[kPageGroup], 4800u);
  // Where all layers have a window, the others' blocks take nothing.
  preference.unit_bytes[kPageGroup] = 0;
  EXPECT_GT(Chosen(preference).memory[kPageGroup], 2 * c.memory[kPageGroup]);
}

}  // namespace
}  // namespace gyre
