// The planner's choice of layers: balance, resize texts; and what members have room for.
#include "coordinator/cluster/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/cluster/plan_memory.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

ModelSizes Sizes(int layers) {
  ModelSizes s;
  s.layers.assign(static_cast<size_t>(layers), 100);
  s.first = 400;
  s.last = 400;
  s.both = 400;
  s.memory.assign(static_cast<size_t>(layers), {kPageGroup, 1});
  s.counts[kPageGroup] = 10;
  return s;
}

TEST(PlannerTest, TheHeadCountsWhereItSits) {
  const auto two = BalanceLayers(Sizes(16), {{.name = "a"}, {.name = "b"}});
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ((*two)[0].layers, (LayerRange{0, 10}));
  EXPECT_EQ((*two)[1].layers, (LayerRange{10, 16}));
  EXPECT_FALSE(BalanceLayers(Sizes(2), {{.name = "a"}, {.name = "b"}, {.name = "c"}}).ok());
  const auto preferences = BalanceLayers(
      Sizes(4), {{.name = "a", .preference = LayerRange{3, 4}}, {.name = "b", .preference = LayerRange{0, 3}}});
  ASSERT_TRUE(preferences.ok()) << preferences.status();
  EXPECT_EQ((*preferences)[0].worker, "b");
  EXPECT_FALSE(BalanceLayers(Sizes(4), {{.name = "a", .preference = LayerRange{2, 4}},
                                        {.name = "b", .preference = LayerRange{0, 3}}})
                   .ok());
}

std::string Balanced(int layers, const std::vector<PlanMember>& members) {
  ModelSizes sizes = Sizes(layers);
  sizes.last = 0;
  const auto out = BalanceLayers(sizes, members);
  if (!out.ok()) return Message(out.status());
  const Plan plan{.num_layers = layers, .stages = MakeStages(*out)};
  return plan.Validate().ok() ? FormatNamedRanges(plan) : Message(plan.Validate());
}

TEST(PlannerTest, WishesAreKeptAndTheOthersShareTheRest) {
  const PlanMember a{.name = "a"}, b{.name = "b"}, c{.name = "c"};
  auto preference = [](const char* name, int begin, int end) {
    return PlanMember{.name = name, .preference = LayerRange{begin, end}};
  };
  EXPECT_EQ(Balanced(8, {a, b, preference("l", 0, 2)}), "l=0-1,a=2-4,b=5-7");
  EXPECT_EQ(Balanced(8, {a, b, preference("l", 6, 8)}), "a=0-2,b=3-5,l=6-7");
  EXPECT_EQ(Balanced(8, {a, b, preference("l", 2, 4)}), "a=0-1,l=2-3,b=4-7");
  EXPECT_EQ(Balanced(10, {a, b, c, preference("l", 2, 4)}), "a=0-1,l=2-3,b=4-6,c=7-9") << "the larger gap gets more";
  EXPECT_EQ(Balanced(10, {a, preference("l", 2, 4), preference("m", 4, 10)}), "a=0-1,l=2-3,m=4-9");
  // Nothing is left for who has no preference.
  EXPECT_EQ(Balanced(8, {a, preference("l", 0, 3), preference("m", 3, 8)}), "l=0-2,m=3-7");
  EXPECT_EQ(Balanced(8, {a, b, c, preference("l", 0, 6)}), "l=0-5,a=6-6,b=7-7");
  // Preferences that can't be kept.
  EXPECT_EQ(Balanced(8, {a, preference("l", 2, 4)}), "a=0-3,l=4-7") << "two gaps for one";
  EXPECT_EQ(Balanced(8, {a, preference("l", 0, 4), preference("m", 2, 8)}), "a=0-1,l=2-4,m=5-7") << "they overlap";
  EXPECT_EQ(Balanced(8, {preference("l", 0, 4), preference("m", 5, 8)}),
            "nobody has layer 4: the ranges must cover 0-7 without a gap");
}

std::string Ordered(int layers, const std::vector<PlanMember>& members) {
  ModelSizes sizes = Sizes(layers);
  sizes.last = 0;
  return Balanced(layers, OrderByHeld(sizes, members));
}

TEST(PlannerTest, WhoHoldsLayersComesWhereTheyAre) {
  auto holds = [](const char* name, int begin, int end) {
    return PlanMember{.name = name, .holds = LayerRange{begin, end}};
  };
  const PlanMember a{.name = "a"}, b{.name = "b"};
  EXPECT_EQ(Ordered(8, {holds("x", 4, 8), holds("y", 0, 2)}), "y=0-3,x=4-7");
  EXPECT_EQ(Ordered(8, {holds("x", 0, 8), holds("y", 0, 2)}), "y=0-3,x=4-7") << "x has layers of both";
  EXPECT_EQ(Ordered(9, {a, holds("x", 6, 9), holds("y", 0, 3)}), "y=0-2,a=3-5,x=6-8") << "the middle was lost";
  EXPECT_EQ(Ordered(9, {a, holds("x", 3, 6), holds("y", 0, 3)}), "y=0-2,x=3-5,a=6-8") << "the end was lost";
  EXPECT_EQ(Ordered(9, {holds("x", 3, 6), holds("y", 6, 9), a}), "a=0-2,x=3-5,y=6-8") << "the beginning was lost";
  EXPECT_EQ(Ordered(8, {b, holds("x", 6, 8), holds("y", 0, 2), a}), "y=0-1,b=2-3,a=4-5,x=6-7");
  EXPECT_EQ(Ordered(8, {b, a}), "b=0-3,a=4-7") << "nobody has anything";
}

TEST(PlannerTest, ADrainedMemberGetsNothing) {
  const std::vector<PlanMember> members{{.name = "a", .drained = true}, {.name = "b"}, {.name = "c"}};
  const auto unnamed = ParseResize("0-3,4-7", Sizes(8), members);
  ASSERT_TRUE(unnamed.ok()) << unnamed.status();
  EXPECT_EQ((*unnamed)[0].worker, "b");
  const auto named = ParseResize("a=0-3,4-7", Sizes(8), members);
  EXPECT_TRUE(absl::IsFailedPrecondition(named.status()));
  EXPECT_THAT(Message(named.status()), HasSubstr("a is drained"));
  EXPECT_TRUE(ParseResize("a=-,0-3,4-7", Sizes(8), members).ok());
}

TEST(PlannerTest, UnnamedRangesGoToWorkersInJoinOrderLocalLast) {
  const std::vector<PlanMember> members{{.name = "local", .local = true}, {.name = "w1"}, {.name = "w2"}};
  const auto plan = ParseResize("0-1,2-3,w1=4-7", Sizes(8), members);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)[0].worker, "w2");
  EXPECT_EQ((*plan)[1].worker, "local");
  EXPECT_EQ((*plan)[2].worker, "w1");
  const auto cuts = ParseResize("2 5", Sizes(8), members);
  ASSERT_TRUE(cuts.ok());
  EXPECT_EQ((*cuts)[0].worker, "w1");
  EXPECT_EQ((*cuts)[2].layers, (LayerRange{5, 8}));
  for (const char* bad :
       {"", ",", "-", "1-", "-1", "a=", "=1-2", "3-1", "0-8", "w1=-x", "0-3;4-7", "99999999999-3", "5 2", "0", "8"}) {
    const auto parsed = ParseResize(bad, Sizes(8), members);
    const bool valid = parsed.ok() && Plan{.num_layers = 8, .stages = MakeStages(*parsed)}.Validate().ok();
    EXPECT_FALSE(valid) << bad;
  }
}

TEST(PlannerTest, MemoryHoldsWhatIsThereAndWhatComes) {
  const ModelSizes sizes = Sizes(8);
  const Plan next{.num_layers = 8, .stages = MakeStages({{"b", "", {0, 4}}, {"a", "", {4, 8}}})};
  auto shortages = [&](uint64_t memory, LayerRange holds) {
    return FindShortages(sizes, {{.name = "a", .memory = memory, .holds = holds}}, next);
  };
  // a: 8 layers of 100 + 10, and the tied matrix once.
  EXPECT_TRUE(shortages(1280, {0, 4}).empty());
  const auto tight = shortages(1279, {0, 4});
  ASSERT_EQ(tight.size(), 1u);
  EXPECT_EQ(tight[0].worker, "a");
  EXPECT_EQ(tight[0].memory, 1279u);
  EXPECT_TRUE(absl::IsResourceExhausted(tight[0].why));
  EXPECT_THAT(Message(tight[0].why), HasSubstr("beside 0-3"));
  EXPECT_TRUE(shortages(840, {}).empty());
  EXPECT_EQ(shortages(839, {}).size(), 1u);
  EXPECT_TRUE(shortages(0, {0, 4}).empty()) << "unknown";
  EXPECT_TRUE(FindShortages(sizes, {{.name = "c", .memory = 1}}, next).empty()) << "it gets nothing";
  // Weights that are fetched need room on the disk, whatever the memory is.
  const uint64_t weights = RangeBytes(sizes, next.stages[1].layers);
  EXPECT_TRUE(FindShortages(sizes, {{.name = "a", .disk = weights}}, next).empty());
  const auto disk = FindShortages(sizes, {{.name = "a", .disk = weights - 1}}, next);
  ASSERT_EQ(disk.size(), 1u);
  EXPECT_THAT(Message(disk[0].why), HasSubstr("its disk has room for"));
  // Those of the layers that it runs stay there meanwhile.
  ASSERT_EQ(next.stages[1].layers, (LayerRange{4, 8}));
  const uint64_t more = RangeBytes(sizes, {0, 8}) - RangeBytes(sizes, {1, 4}) - weights;
  EXPECT_TRUE(FindShortages(sizes, {{.name = "a", .holds = {0, 1}, .disk = weights + more}}, next).empty());
  const auto both = FindShortages(sizes, {{.name = "a", .holds = {0, 1}, .disk = weights + more - 1}}, next);
  ASSERT_EQ(both.size(), 1u);
  EXPECT_THAT(Message(both[0].why), HasSubstr("beside 0 meanwhile"));
  EXPECT_TRUE(FindShortages(sizes, {{.name = "a", .holds = {4, 8}, .disk = 1}}, next).empty()) << "nothing is fetched";
}

TEST(PlannerTest, ATextThatIsTooLongIsRefused) {
  std::string text = "0-7";
  while (text.size() <= kMaxResizeText) text += " ,,,,,,,,,,,,,,";
  const auto refused = ParseResize(text, Sizes(8), {{.name = "a"}});
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_THAT(Message(refused.status()), HasSubstr("at most 65536"));
  EXPECT_TRUE(ParseResize(text.substr(0, kMaxResizeText), Sizes(8), {{.name = "a"}}).ok());
}

TEST(PlannerTest, TheCacheShrinksToWhatTheTightestMemberHolds) {
  const ModelSizes sizes = Sizes(8);  // layers of 100, pages of 10 each for 10 blocks
  const Plan next{.num_layers = 8, .stages = MakeStages({{"a", "", {0, 4}}, {"b", "", {4, 8}}})};
  auto fit = [&](uint64_t memory) {
    return FitBlocks(sizes, {{.name = "a", .memory = memory}, {.name = "b"}}, next, true);
  };
  const uint64_t weights = 4 * 100 + sizes.first + 100;  // and a layer more
  EXPECT_EQ(fit(weights + 5 * 10), 10u);
  EXPECT_EQ(fit(weights + 5 * 10 - 1), 9u);
  EXPECT_EQ(fit(weights + 5), 1u);
  EXPECT_EQ(fit(weights + 4), 0u);
  EXPECT_EQ(fit(10), 0u);
  EXPECT_EQ(fit(0), 10u) << "unknown";
}

}  // namespace
}  // namespace gyre
