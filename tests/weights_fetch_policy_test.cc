// The choice of the source for each piece: lists of events, and a long random run.
#include "weights/fetch_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/testing/virtual_time.h"
#include "tests/testing/worlds.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

Deadline At(int ms) { return Deadline(milliseconds(1'000'000 + ms)); }

FetchPolicy Make(std::vector<uint32_t> wanted, size_t sources) {
  return FetchPolicy(std::move(wanted), sources, {}, At(0));
}

TEST(FetchPolicyTest, PiecesAreAskedInOrderTwoALink) {
  FetchPolicy p = Make({7, 3, 9, 1, 4}, 1);
  EXPECT_EQ(p.Next(0, At(0)), std::nullopt) << "a link that nobody knows";
  p.Linked(0, 0, At(0));
  EXPECT_EQ(p.Next(0, At(0)), 7u);
  EXPECT_EQ(p.Next(0, At(0)), 3u);
  EXPECT_EQ(p.Next(0, At(0)), std::nullopt);
  EXPECT_TRUE(p.Arrived(0, 7, At(1)));
  EXPECT_FALSE(p.Wants(7));
  EXPECT_EQ(p.Next(0, At(1)), 9u);
  EXPECT_EQ(p.CheckForTest(), "");
}

TEST(FetchPolicyTest, EveryPieceIsAskedOfOneOfSeveralSources) {
  FetchPolicy p = Make({0, 1, 2, 3, 4, 5}, 3);
  for (FetchLinkId link = 0; link < 3; ++link) p.Linked(link, link, At(0));
  std::set<uint32_t> asked;
  for (int turn = 0; turn < 2; ++turn) {
    for (FetchLinkId link = 0; link < 3; ++link) EXPECT_TRUE(asked.insert(p.Next(link, At(0)).value()).second);
  }
  EXPECT_EQ(asked.size(), 6u);
}

TEST(FetchPolicyTest, ALinkWithNothingToDoStealsWhatIsOwedForLong) {
  FetchPolicy p = Make({0, 1}, 2);
  p.Linked(0, 0, At(0));
  p.Linked(1, 1, At(0));
  EXPECT_EQ(p.Next(0, At(0)), 0u);
  EXPECT_EQ(p.Next(1, At(0)), 1u);
  EXPECT_TRUE(p.Arrived(1, 1, At(10)));
  EXPECT_EQ(p.Next(1, At(20)), std::nullopt) << "it is only late by milliseconds";
  EXPECT_EQ(p.Next(1, At(400)), 0u);
  EXPECT_EQ(p.Next(1, At(800)), std::nullopt) << "nobody else owes anything";
  EXPECT_EQ(p.steals(), 1u);
  EXPECT_TRUE(p.Arrived(1, 0, At(810)));
  EXPECT_TRUE(p.done());
  EXPECT_FALSE(p.Arrived(0, 0, At(820))) << "the slow one comes too late";
}

TEST(FetchPolicyTest, WhatABrokenLinkOwesIsAskedOfOthers) {
  FetchPolicy p = Make({5, 6, 7}, 2);
  p.Linked(0, 0, At(0));
  p.Linked(1, 1, At(0));
  EXPECT_EQ(p.Next(0, At(0)), 5u);
  EXPECT_EQ(p.Next(0, At(0)), 6u);
  p.Broken(0, 0, Unavailable("the peer is gone"), At(1));
  EXPECT_EQ(p.CheckForTest(), "");
  EXPECT_EQ(p.Next(1, At(2)), 5u) << "those that stood first come first";
  EXPECT_EQ(p.Next(1, At(2)), 6u);
  // The source is dialed again after a pause that doubles.
  EXPECT_EQ(p.MayDial(0, At(100)), false);
  EXPECT_EQ(p.MayDial(0, At(260)), true);
  p.Broken(0, 0, Unavailable("still gone"), At(260));
  EXPECT_EQ(p.MayDial(0, At(600)), false);
  EXPECT_EQ(p.MayDial(0, At(770)), true);
  EXPECT_TRUE(p.Failure(At(770)).ok());
}

TEST(FetchPolicyTest, ARefusedPieceIsAskedOfTheOtherSource) {
  FetchPolicy p = Make({5}, 2);
  p.Linked(0, 0, At(0));
  EXPECT_EQ(p.Next(0, At(0)), 5u);
  p.Refused(0, 5, "a has no tensor x", At(1));
  EXPECT_EQ(p.Next(0, At(1)), std::nullopt);
  EXPECT_TRUE(p.Failure(At(1)).ok()) << "the other one may have it";
  p.Linked(1, 1, At(2));
  EXPECT_EQ(p.Next(1, At(2)), 5u);
  p.Refused(1, 5, "b has no tensor x", At(3));
  const Status failed = p.Failure(At(3));
  EXPECT_TRUE(absl::IsNotFound(failed));
  EXPECT_THAT(Message(failed), HasSubstr("b has no tensor x"));
}

TEST(FetchPolicyTest, ASourceThatSendsWrongBytesIsAskedNothingMore) {
  FetchPolicy p = Make({5, 6, 7, 8}, 2);
  p.Linked(0, 0, At(0));
  p.Linked(1, 0, At(0));  // two links of one source
  EXPECT_EQ(p.Next(0, At(0)), 5u);
  EXPECT_EQ(p.Next(1, At(0)), 6u);
  p.Wrong(0, 5, "a lies", At(1));
  EXPECT_EQ(p.MayDial(0, At(1)), true) << "once may be an accident of the network";
  EXPECT_EQ(p.Next(0, At(1)), 5u);
  p.Wrong(0, 5, "a lies", At(1));
  EXPECT_EQ(p.CheckForTest(), "");
  EXPECT_EQ(p.MayDial(0, At(1)), std::nullopt);
  EXPECT_EQ(p.Next(0, At(1)), std::nullopt);
  EXPECT_EQ(p.Next(1, At(1)), std::nullopt);
  p.Linked(2, 1, At(1));
  std::set<uint32_t> asked;
  for (int i = 0; i < 4; ++i) {
    const uint32_t piece = p.Next(2, At(2)).value();
    asked.insert(piece);
    EXPECT_TRUE(p.Arrived(2, piece, At(2)));
  }
  EXPECT_EQ(asked, (std::set<uint32_t>{5, 6, 7, 8}));
  EXPECT_TRUE(p.done());
}

TEST(FetchPolicyTest, ASlowLinkHasOneRequestAtATime) {
  FetchPolicy p = Make({1, 2, 3, 4}, 1);
  p.Linked(0, 0, At(0));
  EXPECT_EQ(p.Next(0, At(0)), 1u);
  EXPECT_EQ(p.Next(0, At(0)), 2u);
  EXPECT_TRUE(p.Arrived(0, 1, At(6000)));
  EXPECT_EQ(p.Next(0, At(6000)), std::nullopt);
  EXPECT_TRUE(p.Arrived(0, 2, At(6500)));
  EXPECT_EQ(p.Next(0, At(6500)), 3u) << "half a second a piece, as the line is free again";
  EXPECT_EQ(p.Next(0, At(6500)), 4u);
}

TEST(FetchPolicyTest, ASourceThatRefusesLinksIsNotDialedAgain) {
  FetchPolicy p = Make({1}, 2);
  p.GiveUp(0, FailedPrecondition("it knows no weights"));
  EXPECT_EQ(p.MayDial(0, At(0)), std::nullopt);
  EXPECT_TRUE(p.Failure(At(0)).ok());
  p.GiveUp(1, FailedPrecondition("it knows no weights either"));
  EXPECT_THAT(Message(p.Failure(At(0))), HasSubstr("either"));
}

TEST(FetchPolicyTest, BytesOfASlowPieceAreNoSilence) {
  FetchPolicy p = Make({1}, 1);
  p.Linked(0, 0, At(0));
  p.Next(0, At(0));
  p.Heard(At(0) + seconds(100));
  EXPECT_TRUE(p.Failure(At(0) + seconds(200)).ok());
  EXPECT_FALSE(p.Failure(At(0) + seconds(230)).ok());
}

TEST(FetchPolicyTest, SilenceIsAFailureAndNoSourcesTooAre) {
  FetchPolicy p = Make({5}, 1);
  p.Linked(0, 0, At(0));
  p.Next(0, At(0));
  EXPECT_TRUE(p.Failure(At(0) + seconds(119)).ok());
  EXPECT_TRUE(absl::IsUnavailable(p.Failure(At(0) + seconds(121))));
  EXPECT_TRUE(absl::IsNotFound(Make({5}, 0).Failure(At(0))));
  EXPECT_TRUE(Make({}, 0).Failure(At(0)).ok()) << "nothing is wanted";
}

// A world of sources with different pieces, speeds and faults. Whatever happens, a piece that an honest source has
// arrives, and none is asked for in vain.
class World {
 public:
  explicit World(uint32_t seed) : random_(seed) {
    const size_t sources = 1 + random_() % 5, pieces = 1 + random_() % 60;
    std::vector<uint32_t> wanted;
    for (uint32_t i = 0; i < pieces; ++i) wanted.push_back(i * 3);
    std::shuffle(wanted.begin(), wanted.end(), random_);
    for (size_t s = 0; s < sources; ++s) {
      Source source;
      source.lies = random_() % 5 == 0;
      source.takes = milliseconds(1 + random_() % 400);
      for (uint32_t p : wanted) {
        if (random_() % 3 != 0) source.has.insert(p);
      }
      sources_.push_back(std::move(source));
    }
    // The first is as a coordinator: it has all.
    sources_[0].lies = false;
    sources_[0].has.insert(wanted.begin(), wanted.end());
    policy_.emplace(wanted, sources, FetchRules{}, At(0));
    left_ = wanted.size();
    for (size_t s = 0; s < sources; ++s) {
      for (int i = 0; i < 2; ++i) links_.push_back({.source = static_cast<SourceId>(s), .up = false, .due = {}});
    }
  }

  void Run() {
    for (; left_ > 0; time_.PassTo(now() + milliseconds(5))) {
      ASSERT_LT(now(), At(600'000)) << left_ << " pieces never came";
      for (FetchLinkId id = 0; id < links_.size(); ++id) Step(id);
      ASSERT_EQ(policy_->CheckForTest(), "") << "at " << (now() - At(0)).count() << " ns";
      ASSERT_TRUE(policy_->Failure(now()).ok()) << policy_->Failure(now());
      ASSERT_EQ(policy_->done(), left_ == 0);
    }
  }

 private:
  Deadline now() const { return time_.now(); }
  struct Source {
    bool lies = false;
    Duration takes{};  // a piece
    std::set<uint32_t> has;
  };
  struct End {
    SourceId source = 0;
    bool up = false;
    std::vector<std::pair<Deadline, uint32_t>> due;  // when each piece that was asked comes
  };
  void Step(FetchLinkId id) {
    End& link = links_[id];
    const Source& source = sources_[link.source];
    if (!link.up) {
      if (policy_->MayDial(link.source, now()) != true) return;
      if (random_() % 10 == 0) return policy_->Broken(id, link.source, Unavailable("no route"), now());
      policy_->Linked(id, link.source, now());
      link.up = true;
    }
    if (random_() % 500 == 0) {
      policy_->Broken(id, link.source, Unavailable("reset"), now());
      link.up = false;
      link.due.clear();
      return;
    }
    while (const auto piece = policy_->Next(id, now())) {
      ASSERT_TRUE(policy_->Wants(*piece)) << "it is here already";
      ASSERT_LT(link.due.size(), 2u);
      const Deadline begins = link.due.empty() ? now() : std::max(now(), link.due.back().first);
      link.due.push_back({begins + source.takes, *piece});
    }
    while (!link.due.empty() && link.due.front().first <= now()) {
      const uint32_t piece = link.due.front().second;
      link.due.erase(link.due.begin());
      if (source.has.count(piece) == 0) {
        policy_->Refused(id, piece, "no", now());
      } else if (source.lies) {
        if (policy_->Wants(piece)) policy_->Wrong(id, piece, "wrong", now());
      } else if (policy_->Arrived(id, piece, now())) {
        --left_;
      }
    }
  }

  std::mt19937 random_;
  std::vector<Source> sources_;
  std::vector<End> links_;
  std::optional<FetchPolicy> policy_;
  size_t left_ = 0;
  testing::VirtualTime time_{At(0)};
};

TEST(FetchPolicyTest, Soak) {
  testing::PlayWorlds({300}, [](uint64_t seed) { World(static_cast<uint32_t>(seed)).Run(); });
}

}  // namespace
}  // namespace gyre
