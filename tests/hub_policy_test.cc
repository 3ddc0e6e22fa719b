// The policy of a download, as lists of events: no network, no clock.
#include "hub/download_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/worlds.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A policy with its clock. Time stands still but for Pass.
class PolicyTest : public ::testing::Test {
 protected:
  using Again = DownloadPolicy::Again;
  static DownloadPolicyOptions Options() {
    return {.connections = 3,
            .range_bytes = 4 * kMiB,
            .least_split = kMiB,
            .first_pause = milliseconds(500),
            .longest_pause = seconds(4),
            .attempts = 5,
            .first_attempts = 3};
  }
  void Pass(Duration time) { now_ += time; }
  // Actions as words: "locate", "0:0-4" (slot, MiB), "cancel 1", "whole 0".
  std::vector<std::string> Next() {
    std::vector<std::string> out;
    for (const DownloadAction& a : policy_.Next(now_)) {
      switch (a.kind) {
        case DownloadAction::kLocate: out.push_back("locate"); break;
        case DownloadAction::kCancel: out.push_back(fmt::format("cancel {}", a.slot)); break;
        case DownloadAction::kFetch:
          if (!a.whole) asked_[a.slot] = a.range;
          out.push_back(a.whole ? fmt::format("whole {}", a.slot)
                                : fmt::format("{}:{}-{}", a.slot, a.range.begin / kMiB, a.range.end / kMiB));
      }
    }
    return out;
  }
  void Locate(uint64_t mib, bool ranges = true) {
    EXPECT_EQ(Next(), std::vector<std::string>{"locate"});
    policy_.OnLocated({.size = mib * kMiB, .ranges = ranges}, {}, now_);
    size_ = mib * kMiB;
  }
  void Head(int slot, int code = 206) {
    policy_.OnHead(slot,
                   {.code = code,
                    .range = code == 206 ? std::optional<ByteRange>(asked_[slot]) : std::nullopt,
                    .total = size_,
                    .refusal = Unavailable("code {}", code)},
                   now_);
  }
  ByteRange Bytes(int slot, uint64_t mib) { return policy_.OnBytes(slot, mib * kMiB, now_); }
  void End(int slot) { policy_.OnEnd(slot, absl::OkStatus(), now_); }
  void Break(int slot) { policy_.OnEnd(slot, Unavailable("cut"), now_); }
  double Wait() const { return std::chrono::duration<double>(policy_.wake() - now_).count(); }
  using Words = std::vector<std::string>;

  DownloadPolicy policy_{Options()};
  Deadline now_{seconds(1000)};
  std::map<int, ByteRange> asked_;
  uint64_t size_ = 0;
};

TEST_F(PolicyTest, RangesFollowOneAnother) {
  Locate(20);
  EXPECT_EQ(Next(), (Words{"0:0-4", "1:4-8", "2:8-12"}));
  EXPECT_EQ(Next(), Words{});
  Head(1);
  EXPECT_EQ(Bytes(1, 4), (ByteRange{4 * kMiB, 8 * kMiB}));
  EXPECT_EQ(Next(), Words{}) << "the answer has not ended yet";
  End(1);
  EXPECT_EQ(Next(), Words{"1:12-16"});
  EXPECT_FALSE(policy_.finished());
}

TEST_F(PolicyTest, WhatIsThereIsNotAskedFor) {
  EXPECT_EQ(Next(), Words{"locate"});
  ByteRanges done;
  done.Add({0, 2 * kMiB});
  done.Add({6 * kMiB, 12 * kMiB});
  policy_.OnLocated({.size = 14 * kMiB, .ranges = true}, done, now_);
  EXPECT_EQ(Next(), (Words{"0:2-6", "1:12-14", "2:4-6"})) << "the third takes over the half of the longest";
  Bytes(0, 2);
  Bytes(2, 2);
  EXPECT_EQ(policy_.done().total(), 12 * kMiB);
  Bytes(1, 2);
  EXPECT_TRUE(policy_.finished());
}

TEST_F(PolicyTest, AnIdleConnectionTakesOverHalfOfTheSlowest) {
  Locate(12);
  EXPECT_EQ(Next(), (Words{"0:0-4", "1:4-8", "2:8-12"}));
  for (int slot : {1, 2}) Bytes(slot, 4), End(slot);
  EXPECT_EQ(Next(), (Words{"1:2-4", "2:1-2"}));
  // Connection 0 was asked for more than it keeps: it ends where the next begins.
  EXPECT_EQ(Bytes(0, 3), (ByteRange{0, kMiB}));
  EXPECT_EQ(Next(), (Words{"cancel 0", "0:3-4"}));
}

TEST_F(PolicyTest, TheEndDoesNotWaitForASilentConnection) {
  Locate(12);
  EXPECT_EQ(Next(), (Words{"0:0-4", "1:4-8", "2:8-12"}));
  EXPECT_EQ(policy_.OnBytes(0, 3 * kMiB, now_).size(), 3 * kMiB);
  for (int slot : {1, 2}) Bytes(slot, 4), End(slot);
  EXPECT_EQ(Next(), Words{}) << "too little to split";
  EXPECT_EQ(Wait(), 5);
  Pass(seconds(4));
  policy_.OnBytes(0, 1, now_);
  Pass(seconds(4));
  EXPECT_EQ(Next(), Words{}) << "slow, not silent";
  Pass(seconds(1));
  EXPECT_EQ(Next(), (Words{"cancel 0", "1:3-4"}));
  EXPECT_EQ(Next(), Words{}) << "the next is waited for longer";
  EXPECT_EQ(Wait(), 10);
  // Where the new one is silent too, and the one after it, there is an end.
  int turns = 0;
  while (policy_.failure().ok()) {
    ASSERT_LT(++turns, 20);
    Pass(policy_.wake() - now_);
    Next();
  }
  EXPECT_EQ(turns, 4);
  EXPECT_THAT(Message(policy_.failure()), HasSubstr("silent"));
}

TEST_F(PolicyTest, ABrokenConnectionPausesLongerEachTime) {
  DownloadPolicyOptions options = Options();
  options.connections = 1;
  options.attempts = 7;
  DownloadPolicy policy(options);
  policy.Next(now_);
  policy.OnLocated({.size = kMiB, .ranges = true}, {}, now_);
  policy.Next(now_);
  policy.OnBytes(0, 1, now_);
  std::vector<double> pauses;
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(policy.failure().ok()) << i;
    policy.OnEnd(0, Unavailable("cut"), now_);
    EXPECT_TRUE(policy.Next(now_).empty());
    if (!policy.failure().ok()) break;
    pauses.push_back(std::chrono::duration<double>(policy.wake() - now_).count());
    now_ = policy.wake();
    const std::vector<DownloadAction> again = policy.Next(now_);
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].range, (ByteRange{1, kMiB}));
  }
  EXPECT_THAT(pauses, ::testing::ElementsAre(0.5, 1, 2, 4, 4, 4));
  EXPECT_THAT(Message(policy.failure()), HasSubstr("cut"));
}

TEST_F(PolicyTest, ConnectionsThatBreakTogetherCountOnce) {
  Locate(100);
  EXPECT_EQ(Next().size(), 3u);
  Bytes(0, 1);
  for (int round = 0; round < 4; ++round) {
    for (int slot : {0, 1, 2}) Break(slot);
    ASSERT_TRUE(policy_.failure().ok()) << round;
    Next();
    Pass(seconds(10));
    ASSERT_EQ(Next().size(), 3u);
  }
  Break(0);
  EXPECT_FALSE(policy_.failure().ok());
}

TEST_F(PolicyTest, AByteStartsTheCountAnew) {
  Locate(100);
  EXPECT_EQ(Next().size(), 3u);
  for (int round = 0; round < 30; ++round) {
    policy_.OnBytes(0, 1, now_);
    Break(0);
    Next();
    Pass(milliseconds(500));
    ASSERT_EQ(Next().size(), 1u) << round;
  }
  EXPECT_TRUE(policy_.failure().ok());
}

TEST_F(PolicyTest, BeforeTheFirstByteItGivesUpSooner) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(policy_.failure().ok());
    EXPECT_EQ(Next(), Words{"locate"});
    EXPECT_EQ(Next(), Words{}) << "one at a time";
    policy_.OnLocateFailed(Unavailable("nobody"), Again::kYes, std::nullopt, now_);
    Pass(seconds(10));
  }
  EXPECT_FALSE(policy_.failure().ok());
  DownloadPolicy final(Options());
  final.Next(now_);
  final.OnLocateFailed(NotFound("no"), Again::kNo, std::nullopt, now_);
  EXPECT_EQ(final.failure().code(), absl::StatusCode::kNotFound);
}

TEST_F(PolicyTest, ABusyServerIsAskedAsItSaysAndForLess) {
  Locate(100);
  EXPECT_EQ(Next().size(), 3u);
  for (int slot : {0, 1, 2}) {
    policy_.OnHead(slot, {.code = 429, .retry_after = seconds(7), .refusal = ResourceExhausted("busy")}, now_);
  }
  EXPECT_EQ(Next(), (Words{"cancel 0", "cancel 1", "cancel 2"}));
  EXPECT_EQ(Wait(), 7);
  Pass(milliseconds(6999));
  EXPECT_EQ(Next(), Words{});
  Pass(milliseconds(1));
  EXPECT_EQ(Next(), Words{"0:0-4"}) << "half of three, and once for all three refusals";
  for (int i = 0; i < 4; ++i) {
    Bytes(0, 4);
    End(0);
    if (i < 3) ASSERT_EQ(Next().size(), 1u);
  }
  EXPECT_EQ(Next().size(), 2u) << "after some good answers it may be more";
  policy_.OnHead(0, {.code = 503, .retry_after = std::chrono::hours(99), .refusal = Unavailable("busy")}, now_);
  Next();
  EXPECT_EQ(Wait(), 600) << "no server makes it wait for days";
}

TEST_F(PolicyTest, AnExpiredLinkIsAskedForAnew) {
  Locate(100);
  EXPECT_EQ(Next().size(), 3u);
  Bytes(0, 1);
  Head(1, 403);
  Head(2, 403);
  EXPECT_EQ(Next(), (Words{"cancel 1", "cancel 2", "locate"}));
  policy_.OnLocated({.size = 100 * kMiB, .ranges = true}, {}, now_);
  EXPECT_EQ(Next(), (Words{"1:4-8", "2:8-12"}));
  // Where the new link is refused too, without a byte between, there is no going on.
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(policy_.failure().ok());
    Pass(seconds(1));
    Head(1, 403);
    if (!policy_.failure().ok()) break;
    EXPECT_EQ(Next(), (Words{"cancel 1", "locate"}));
    policy_.OnLocated({.size = 100 * kMiB, .ranges = true}, {}, now_);
    EXPECT_EQ(Next().size(), 1u);
  }
  Head(1, 403);
  EXPECT_THAT(Message(policy_.failure()), HasSubstr("403"));
}

TEST_F(PolicyTest, AFileThatIsAnotherOneEndsIt) {
  Locate(100);
  Next();
  Head(1, 404);
  Next();
  policy_.OnLocated({.size = 99 * kMiB, .ranges = true}, {}, now_);
  EXPECT_EQ(policy_.failure().code(), absl::StatusCode::kDataLoss);
  DownloadPolicy etags(Options());
  etags.Next(now_);
  etags.OnLocated({.size = kMiB, .ranges = true, .etag = "\"a\""}, {}, now_);
  etags.Next(now_);
  etags.OnHead(0, {.code = 206, .range = ByteRange{0, kMiB}, .total = kMiB, .etag = "\"b\""}, now_);
  EXPECT_EQ(etags.failure().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PolicyTest, AServerWithoutRangesGivesTheWholeFile) {
  Locate(100);
  EXPECT_EQ(Next().size(), 3u);
  policy_.OnHead(1, {.code = 200, .total = size_}, now_);
  EXPECT_EQ(Next(), (Words{"cancel 0", "cancel 2", "cancel 1", "whole 0"}));
  policy_.OnHead(0, {.code = 200, .total = size_}, now_);
  EXPECT_EQ(Bytes(0, 60), (ByteRange{0, 60 * kMiB}));
  Break(0);
  Next();
  Pass(seconds(1));
  EXPECT_EQ(Next(), Words{"whole 0"});
  EXPECT_EQ(Bytes(0, 100), (ByteRange{0, 100 * kMiB}));
  EXPECT_TRUE(policy_.finished());
}

TEST_F(PolicyTest, AnAnswerFromTheBeginIsKeptWhereItIsTheWholeFile) {
  Locate(100);
  EXPECT_EQ(Next().size(), 3u);
  policy_.OnHead(0, {.code = 200, .total = size_}, now_);
  EXPECT_EQ(Next(), (Words{"cancel 1", "cancel 2"}));
  EXPECT_EQ(Bytes(0, 100), (ByteRange{0, 100 * kMiB}));
}

TEST_F(PolicyTest, ASizeThatIsNotToldIsThereAtTheEnd) {
  EXPECT_EQ(Next(), Words{"locate"});
  policy_.OnLocated({}, {}, now_);
  EXPECT_EQ(Next(), Words{"whole 0"});
  policy_.OnHead(0, {.code = 200}, now_);
  Bytes(0, 7);
  EXPECT_FALSE(policy_.finished());
  End(0);
  EXPECT_TRUE(policy_.finished());
  EXPECT_EQ(policy_.size(), 7 * kMiB);
}

TEST_F(PolicyTest, AnswersThatDoNotFitAreRefused) {
  Locate(100);
  EXPECT_EQ(Next().size(), 3u);
  policy_.OnHead(0, {.code = 206, .range = ByteRange{1, kMiB}, .total = size_}, now_);
  EXPECT_EQ(Next(), Words{"cancel 0"}) << "another range";
  EXPECT_EQ(Bytes(0, 1), (ByteRange{0, 0}));
  policy_.OnHead(1, {.code = 206, .range = asked_[1], .total = size_ + 1}, now_);
  EXPECT_EQ(policy_.failure().code(), absl::StatusCode::kDataLoss) << "another size";
}

// Whatever the network does, each byte comes, or there is a reason; and no more is asked for than is missing.
TEST_F(PolicyTest, RandomEvents) {
  testing::PlayWorlds({.count = 300, .first = 0}, [this](uint64_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    DownloadPolicyOptions options = Options();
    options.connections = 1 + static_cast<int>(random() % 6);
    options.range_bytes = 1 + random() % 500;
    options.least_split = 1 + random() % 50;
    DownloadPolicy policy(options);
    const uint64_t size = random() % 5000;
    std::vector<bool> there(size);
    std::map<int, ByteRange> running;
    int turns = 0;
    while (!policy.finished() && policy.failure().ok()) {
      ASSERT_LT(++turns, 100000);
      for (const DownloadAction& a : policy.Next(now_)) {
        if (a.kind == DownloadAction::kCancel) running.erase(a.slot);
        if (a.kind == DownloadAction::kLocate) policy.OnLocated({.size = size, .ranges = true}, {}, now_);
        if (a.kind != DownloadAction::kFetch) continue;
        ASSERT_LE(a.range.end, size);
        ASSERT_LT(a.range.begin, a.range.end);
        ASSERT_TRUE(running.emplace(a.slot, a.range).second) << "one answer at a time on a connection";
      }
      if (running.empty()) {
        if (policy.wake() != kNoDeadline) now_ = std::max(now_, policy.wake());
        continue;
      }
      auto at = running.begin();
      std::advance(at, random() % running.size());
      const int slot = at->first;
      switch (random() % 12) {
        case 0:
          running.erase(at);
          policy.OnEnd(slot, Unavailable("cut"), now_);
          break;
        case 1: policy.OnHead(slot, {.code = 429, .refusal = ResourceExhausted("busy")}, now_); break;
        case 2: now_ += milliseconds(random() % 1000); break;
        default: {
          const uint64_t count = std::min<uint64_t>(at->second.size(), 1 + random() % 200);
          const ByteRange got = policy.OnBytes(slot, count, now_);
          ASSERT_TRUE(got.size() == 0 || got.begin == at->second.begin);
          for (uint64_t i = got.begin; i < got.end; ++i) there[i] = true;
          at->second.begin += count;
          if (at->second.size() > 0) break;
          running.erase(at);
          policy.OnEnd(slot, absl::OkStatus(), now_);
        }
      }
    }
    if (policy.failure().ok()) {
      EXPECT_EQ(static_cast<uint64_t>(std::count(there.begin(), there.end(), true)), size);
    }
    EXPECT_EQ(policy.done().total(), static_cast<uint64_t>(std::count(there.begin(), there.end(), true)));
  });
}

}  // namespace
}  // namespace gyre
