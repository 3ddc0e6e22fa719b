// Contents that have a name, and the tables of sequences that share them.
#include "coordinator/engine/kv_cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engine/prefix_index.h"

namespace gyre {
namespace {

// Tokens of the class of prompts.
struct Rows {
  explicit Rows(std::vector<TokenId> t) : tokens(std::move(t)), classes(tokens.size(), RowClass::kPrompt) {}
  TokenSpan span() const { return {tokens, classes}; }
  std::vector<TokenId> tokens;
  std::vector<RowClass> classes;
};

TEST(PrefixIndex, AContentIsFoundByAllThatItIs) {
  // With equal hashes too.
  for (const PrefixIndex::HashFunction hash :
       {&PrefixIndex::Hash, +[](uint64_t, ChainId, TokenSpan) -> uint64_t { return 7; }}) {
    PrefixIndex index(hash);
    const Rows a({1, 2}), b({3, 4});
    const ChainId first = index.Add(0, kNoChain, a.span()), second = index.Add(0, first, b.span());
    EXPECT_NE(first, second);
    EXPECT_EQ(index.Find(0, kNoChain, a.span()), first);
    EXPECT_EQ(index.Find(0, first, b.span()), second);
    EXPECT_EQ(index.Find(1, kNoChain, a.span()), kNoChain) << "another salt";
    EXPECT_EQ(index.Find(0, kNoChain, b.span()), kNoChain) << "another parent";
    EXPECT_EQ(index.Find(0, kNoChain, Rows({1, 3}).span()), kNoChain) << "other tokens";
    Rows generated({1, 2});
    generated.classes[1] = RowClass::kGenerated;
    EXPECT_EQ(index.Find(0, kNoChain, generated.span()), kNoChain) << "other classes";
    EXPECT_TRUE(index.CheckIntegrity(2).ok()) << index.CheckIntegrity(2);
    EXPECT_FALSE(index.CheckIntegrity(3).ok());
    index.Forget(first);
    EXPECT_EQ(index.Find(0, kNoChain, a.span()), kNoChain);
    EXPECT_GT(index.Add(0, kNoChain, a.span()), second) << "no chain is handed out twice";
    EXPECT_EQ(index.size(), 2u);
  }
}

TEST(PrefixIndex, AnotherIndexIsTakenOverUnderItsChains) {
  PrefixIndex index;
  const CachedUnit unit{.chain = 9, .parent = 3, .salt = 5, .tokens = {1, 2}, .classes = {RowClass::kPrompt, {}}};
  EXPECT_TRUE(index.Restore(unit));
  EXPECT_FALSE(index.Restore(unit)) << "the chain is known";
  CachedUnit wrong = unit;
  wrong.chain = 3;
  EXPECT_FALSE(index.Restore(wrong)) << "it does not come after its parent";
  EXPECT_EQ(index.Find(5, 3, {unit.tokens, unit.classes}), 9u);
  CachedUnit described;
  index.Describe(9, &described);
  described.chain = 9;
  EXPECT_EQ(described, unit);
  EXPECT_GT(index.NewChain(), 9u);
}

class KvCacheTest : public ::testing::Test {
 protected:
  // Eight pages of two positions.
  KvCache cache_{{.counts = {.units = {8}}, .block_size = 2}};

  bool Admit(const Rows& rows, KvTables* t, KvUnits margin = {}) {
    return cache_.Admit({.rows = rows.span(), .prompt = static_cast<uint32_t>(rows.tokens.size()), .margin = margin},
                        t);
  }
  void ExpectWhole(const std::vector<const KvTables*>& all) {
    const Status status = cache_.CheckIntegrity(all);
    EXPECT_TRUE(status.ok()) << status;
  }
};

TEST_F(KvCacheTest, ABeginningIsSharedAndItsTailIsEvictedFirst) {
  const Rows text({1, 2, 3, 4, 5});
  KvTables a, b, c;
  ASSERT_TRUE(Admit(text, &a));
  cache_.Publish(text.span(), 4, 1, &a);
  ASSERT_TRUE(Admit(text, &b));
  EXPECT_EQ(b.published, 2u);
  EXPECT_EQ(b.blocks[0], a.blocks[0]);
  EXPECT_EQ(b.blocks[1], a.blocks[1]);
  EXPECT_NE(b.blocks[2], a.blocks[2]) << "a block that is open to new rows is nobody else's";
  ExpectWhole({&a, &b});
  EXPECT_FALSE(cache_.CheckIntegrity(std::vector<const KvTables*>{&a}).ok()) << "b's references are missing";
  const BlockId head = a.blocks[0], tail = a.blocks[1];
  cache_.Release(&a);
  cache_.Release(&b);
  EXPECT_EQ(cache_.pool(kPageGroup).kept(), 2u);
  ExpectWhole({});
  // Seven blocks: the six free ones, and the tail of the chain.
  ASSERT_TRUE(Admit(Rows(std::vector<TokenId>(14, 7)), &c));
  EXPECT_EQ(c.blocks.back(), tail);
  EXPECT_EQ(cache_.FindPrefix(0, text.span()), std::vector<BlockId>{head});
  ExpectWhole({&c});
  KvTables none;
  EXPECT_FALSE(Admit(Rows({9, 9, 9}), &none)) << "one block is left";
  EXPECT_TRUE(none.blocks.empty());
  EXPECT_FALSE(Admit(text, &none)) << "its beginning is there, and two more blocks are not";
  ExpectWhole({&c});
  EXPECT_TRUE(Admit(Rows({9, 9}), &none));
}

TEST_F(KvCacheTest, AMarginStaysFree) {
  KvTables a;
  const Rows text(std::vector<TokenId>(12, 1));
  EXPECT_FALSE(Admit(text, &a, {3}));
  EXPECT_TRUE(Admit(text, &a, {2}));
  EXPECT_EQ(a.blocks.size(), 6u);
}

TEST_F(KvCacheTest, EqualContentsAreFoundOnce) {
  const Rows text({1, 2, 3});
  KvTables a, b;
  ASSERT_TRUE(Admit(text, &a));
  ASSERT_TRUE(Admit(text, &b));
  cache_.Publish(text.span(), 2, 1, &a);
  cache_.Publish(text.span(), 2, 2, &b);
  EXPECT_EQ(a.chain, b.chain);
  EXPECT_EQ(cache_.pool(kPageGroup).published(), 1u) << "the second one stays private";
  EXPECT_EQ(cache_.StepsOf(std::vector<BlockId>{a.blocks[0], b.blocks[0]}), (std::vector<uint64_t>{1, 0}));
  ExpectWhole({&a, &b});
}

TEST_F(KvCacheTest, AnotherRingFindsNothingOfTheLastOne) {
  const Rows text({1, 2, 3, 4, 5});
  KvTables a, b;
  ASSERT_TRUE(Admit(text, &a));
  cache_.Publish(text.span(), 2, 1, &a);
  cache_.SetRing(77, 8);
  cache_.Publish(text.span(), 4, 2, &a);
  EXPECT_EQ(a.published, 1u) << "its rows are of both rings";
  ASSERT_TRUE(Admit(text, &b));
  EXPECT_EQ(b.published, 0u);
  cache_.SetRing(77, 8);
  cache_.Publish(text.span(), 4, 3, &b);
  EXPECT_EQ(b.published, 2u);
}

TEST_F(KvCacheTest, WhatLeaksComesBackToItsOwners) {
  const Rows text({1, 2, 3});
  KvTables a, lost;
  ASSERT_TRUE(Admit(text, &a));
  cache_.Publish(text.span(), 2, 1, &a);
  ASSERT_TRUE(Admit(text, &lost));
  cache_.LeakForTest();
  const std::vector<const KvTables*> all{&a};
  EXPECT_FALSE(cache_.CheckIntegrity(all).ok());
  EXPECT_EQ(cache_.Reclaim(all), 3u) << "a reference to the first block, the other one's second, and one of nobody";
  ExpectWhole(all);
  cache_.Release(&a);
  EXPECT_EQ(cache_.pool(kPageGroup).kept(), 1u) << "what it holds can still be found";
  EXPECT_EQ(cache_.pool(kPageGroup).available(), 8u);
}

// In every build, as none of them has to be right about who calls.
TEST_F(KvCacheTest, AWrongCallIsToldOnce) {
  const Rows text({1, 2, 3});
  KvTables a;
  ASSERT_TRUE(Admit(text, &a));
  KvTables twice = a;
  cache_.Publish(text.span(), 2, 1, &a);
  const Rows other({3, 4, 3});
  cache_.Publish(other.span(), 2, 2, &twice);
  EXPECT_EQ(Message(cache_.TakeFault()), "block 0 of 8 is published, and it has 1 owners and a content");
  EXPECT_NE(twice.chain, a.chain) << "what follows is found by nobody";
  EXPECT_TRUE(cache_.FindPrefix(0, other.span()).empty());
  ExpectWhole({&a});
  cache_.Release(&a);
  cache_.ReleaseForTest(1);
  EXPECT_EQ(Message(cache_.TakeFault()), "block 1 of 8 is given back, and it has no owner");
  EXPECT_TRUE(cache_.TakeFault().ok());
  ExpectWhole({});
}

TEST_F(KvCacheTest, EachPoolTellsOfDoubleFreesAndOfFreedUnitsInUse) {
  KvCache cache({.counts = {.units = {8, 4, 8}}, .block_size = 2, .window = 2});
  const Rows text({1, 2, 3});
  const auto admit = [&](KvTables* t) {
    ASSERT_TRUE(cache.Admit({.rows = text.span(), .prompt = 3}, t));
    while (cache.Held(*t, 3) < 3) ASSERT_TRUE(cache.TakeUnit(3, false, t));
  };
  KvTables held;
  admit(&held);
  const KvTables freed = held;
  cache.Release(&held);
  ASSERT_TRUE(cache.TakeFault().ok());
  const auto give_back = [&](const std::function<void(KvTables&)>& put) {
    KvTables again;
    put(again);
    cache.Release(&again);
    return Message(cache.TakeFault());
  };
  EXPECT_EQ(give_back([&](KvTables& t) { t.blocks = {freed.blocks[0]}; }),
            "block 0 of 8 is given back, and it has no owner");
  EXPECT_EQ(give_back([&](KvTables& t) { t.slot = freed.slot; }), "slot 0 of 4 is given back, and it has no owner");
  EXPECT_EQ(give_back([&](KvTables& t) { t.window = {freed.window[0]}; }),
            "windowed block 0 of 8 is given back, and it has no owner");

  KvTables tables;
  admit(&tables);
  const auto launch = [&](const std::function<void(KvTables&)>& put) {
    KvTables wrong = tables;
    put(wrong);
    cache.Launch(2, 3, true, &wrong);
    return Message(cache.TakeFault());
  };
  EXPECT_EQ(launch([](KvTables&) {}), "");
  EXPECT_EQ(launch([](KvTables& t) { t.blocks[1] = 7; }), "block 7 of 8 is about to be written, and it has 0 owners");
  EXPECT_EQ(launch([](KvTables& t) { t.blocks[0] = 7; }), "block 7 of 8 is read, and it has no owner");
  EXPECT_EQ(launch([](KvTables& t) { t.slot = 3; }), "slot 3 of 4 is about to be written, and it has 0 owners");
  EXPECT_EQ(launch([](KvTables& t) { t.begins_with = 3; }), "slot 3 of 4 is read, and it has no owner");
  EXPECT_EQ(launch([](KvTables& t) { t.window[1] = 7; }),
            "windowed block 7 of 8 is about to be written, and it has 0 owners");
  EXPECT_EQ(launch([](KvTables& t) { t.window[0] = 7; }), "windowed block 7 of 8 is read, and it has no owner");
}

TEST_F(KvCacheTest, WhatIsTakenOverIsFoundAndTheNewerOfTwoEqualsStays) {
  const auto unit = [](BlockId block, uint64_t step, ChainId chain, ChainId parent, std::vector<TokenId> tokens) {
    return CachedUnit{.place = {kPageGroup, block},
                      .step = step,
                      .chain = chain,
                      .parent = parent,
                      .salt = MixSalts(0, 0),
                      .tokens = std::move(tokens),
                      .classes = {RowClass::kPrompt, RowClass::kPrompt}};
  };
  cache_.Restore({unit(0, 5, 10, kNoChain, {1, 2}), unit(3, 6, 11, 10, {3, 4}), unit(4, 4, 8, kNoChain, {1, 2}),
                  unit(0, 7, 12, kNoChain, {5, 6}), unit(9, 8, 13, kNoChain, {7, 8}), unit(5, 9, 14, 15, {7, 8}),
                  unit(6, 9, 16, kNoChain, {7})});
  EXPECT_EQ(cache_.FindPrefix(0, Rows({1, 2, 3, 4}).span()), (std::vector<BlockId>{0, 3}));
  EXPECT_EQ(cache_.pool(kPageGroup).published(), 2u)
      << "an older equal, a second content of a block, and four that do not fit";
  EXPECT_EQ(cache_.pool(kPageGroup).available(), 8u);
  const std::vector<CacheChange> void_units = cache_.TakeChanges(9);
  ASSERT_EQ(void_units.size(), 1u) << "whoever stored the older equal drops it";
  EXPECT_EQ(void_units[0].place, (MemoryCounts::Place{kPageGroup, 4}));
  EXPECT_FALSE(void_units[0].unit.has_value());
  ExpectWhole({});
}

// Five slots, one of which the sequence has, and a snapshot at the regular distance of eight positions.
class KvSnapshotTest : public ::testing::Test {
 protected:
  KvCache cache_{{.counts = {.units = {64, 5}}, .block_size = 2, .snapshot_every = 8}};

  // Computes a prompt and lets it go. Returns the positions of its snapshots.
  std::vector<uint32_t> Compute(const Rows& rows, const std::vector<uint32_t>& boundaries, uint32_t* found = nullptr) {
    KvTables t;
    const auto size = static_cast<uint32_t>(rows.tokens.size());
    EXPECT_TRUE(cache_.Admit({.rows = rows.span(), .prompt = size, .boundaries = boundaries}, &t));
    std::vector<uint32_t> snapshots;
    const uint32_t begin = t.published * 2;
    if (found != nullptr) *found = begin;
    for (uint32_t at = begin; at < size;) {
      const uint32_t end = std::min(size, cache_.NextSnapshot(t, at));
      if (cache_.Launch(at, end, at == begin, &t).slots.copy != kNoBlock) snapshots.push_back(end);
      at = end;
      cache_.Begun(&t);
      cache_.Publish(rows.span(), at, ++step_, &t);
    }
    cache_.Release(&t);
    const Status status = cache_.CheckIntegrity({});
    EXPECT_TRUE(status.ok()) << status;
    return snapshots;
  }
  static Rows Text(TokenId first, int n) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(first + i);
    return Rows(std::move(tokens));
  }
  uint64_t step_ = 0;
};

TEST_F(KvSnapshotTest, TheyStandWhereMessagesPart) {
  EXPECT_EQ(Compute(Text(0, 7), {}), (std::vector<uint32_t>{6})) << "where the prompt ends";
  EXPECT_EQ(Compute(Text(100, 15), {0, 5, 11, 90}), (std::vector<uint32_t>{4, 8, 10, 14}))
      << "in whole blocks, and at the regular distance";
  EXPECT_EQ(Compute(Text(200, 7), {5, 6}), (std::vector<uint32_t>{4})) << "of two adjacent blocks the first";
}

TEST_F(KvSnapshotTest, OfManyMessagesTheFirstAndTheLastCount) {
  KvTables t;
  const Rows rows = Text(0, 62);
  std::vector<uint32_t> boundaries;
  for (uint32_t at = 6; at < 56; at += 6) boundaries.push_back(at);
  ASSERT_TRUE(cache_.Admit({.rows = rows.span(), .prompt = 62, .boundaries = boundaries}, &t));
  EXPECT_EQ(t.parts, (std::vector<uint32_t>{6, 36, 42, 48, 54, 60}));
  cache_.Release(&t);
}

// A next turn: it lacks what the answer began with.
TEST_F(KvSnapshotTest, TheNextTurnFindsTheLastMessage) {
  Rows first = Text(0, 21);
  Compute(first, {4, 19});
  Rows next = Text(0, 19);
  for (TokenId id = 500; id < 520; ++id) {
    next.tokens.push_back(id);
    next.classes.push_back(RowClass::kPrompt);
  }
  uint32_t found = 0;
  Compute(next, {4, 19, 30, 37}, &found);
  EXPECT_EQ(found, 18u);
}

// An answer ends anywhere: the last of its snapshots stays, and those at the regular distance.
TEST_F(KvSnapshotTest, TheNextTurnFindsTheAnswer) {
  KvCache cache({.counts = {.units = {64, 6}}, .block_size = 2, .snapshot_every = 16, .answer_every = 3});
  Rows rows = Text(0, 7);
  KvTables t;
  ASSERT_TRUE(cache.Admit({.rows = rows.span(), .prompt = 7}, &t));
  uint64_t step = 0;
  uint32_t copies = 0, kept = 0;
  for (uint32_t at = 0; at < 29;) {
    const uint32_t end = at == 0 ? cache.NextSnapshot(t, 0) : at == 6 ? 7 : at + 1;
    while (t.blocks.size() < cache.BlocksFor(end)) ASSERT_TRUE(cache.TakeUnit(end, false, &t));
    copies += cache.Launch(at, end, at == 0, &t).slots.copy != kNoBlock ? 1 : 0;
    at = end;
    if (at >= 7) {
      rows.tokens.push_back(static_cast<TokenId>(100 + at));
      rows.classes.push_back(RowClass::kPrompt);
    }
    cache.Publish(rows.span(), at, ++step, &t);
    kept = std::max(kept, cache.pool(kSlotGroup).kept());
  }
  EXPECT_EQ(copies, 7u) << "6; 8, 12, 16, 20, 24, 28";
  EXPECT_EQ(kept, 3u) << "the prompt's, the regular one at 16, and the last one";
  cache.Release(&t);
  KvTables next;
  rows.tokens.insert(rows.tokens.end(), {7, 7, 7, 7});
  rows.classes.resize(rows.tokens.size(), RowClass::kPrompt);
  ASSERT_TRUE(cache.Admit({.rows = rows.span(), .prompt = static_cast<uint32_t>(rows.tokens.size())}, &next));
  EXPECT_EQ(next.published * 2, 28u);
  cache.Release(&next);
  const Status status = cache.CheckIntegrity({});
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(KvSnapshotTest, RegularOnesGoFirst) {
  Compute(Text(0, 11), {4});   // 4, 8 (which is regular) and 10
  Compute(Text(100, 41), {});  // 8, 16, 24, 32 and 40: four slots are there beside its own
  uint32_t found = 0;
  Compute(Text(0, 11), {4}, &found);
  EXPECT_EQ(found, 10u) << "the other one's regular snapshots took each other's slots";
}

}  // namespace
}  // namespace gyre
