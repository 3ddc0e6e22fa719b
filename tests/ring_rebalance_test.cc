// Real processes that join, are measured, get layers by their speeds, and are drained, while texts are written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/files.h"
#include "tests/testing/known_speeds.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"

namespace gyre::rebalance_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Clients;
using ::testing::HasSubstr;
using testing::Ring;

constexpr int kVocab = 96;

// A cache folder whose numbers say that this machine, with one thread, is as fast as it is wanted to be: as slow, so
// that a tiny model's layers take longer than the links.
class KnownSpeeds {
 public:
  KnownSpeeds() : folder_(std::filesystem::temp_directory_path() / fmt::format("gyre-speeds-{}", getpid())) {
    std::filesystem::remove_all(folder_);
  }
  ~KnownSpeeds() { std::filesystem::remove_all(folder_); }
  std::vector<std::string> Flags(const std::string& name, double memory_rate) {
    const std::filesystem::path folder = folder_ / name;
    testing::KeepSpeeds(folder, {1}, memory_rate, 1e12);
    return {"--cache", folder.string()};
  }

 private:
  const std::filesystem::path folder_;
};

class RebalanceTest : public ::testing::Test {
 protected:
  // Asks until `wanted` is true of the status.
  static v1::StatusReply WaitFor(Ring& ring, const std::function<bool(const v1::StatusReply&)>& wanted) {
    StatusOr<v1::StatusReply> status = v1::StatusReply();
    for (int i = 0; i < 4000; ++i) {
      status = FetchStatus(ring.at());
      if (status.ok() && wanted(*status)) return *std::move(status);
      std::this_thread::sleep_for(milliseconds(5));
    }
    ADD_FAILURE() << (status.ok() ? status->DebugString() : Message(status.status())) << ring.serve().output();
    return {};
  }
  static const v1::MemberStatus& MemberOf(const v1::StatusReply& status, const std::string& name) {
    static const v1::MemberStatus kNone;
    for (const v1::MemberStatus& m : status.members()) {
      if (m.name() == name) return m;
    }
    ADD_FAILURE() << "no " << name;
    return kNone;
  }

  testing::TinyModelFile model_{testing::TinyOptions{.layers = 12}};
  KnownSpeeds speeds_;
};

TEST_F(RebalanceTest, AFourthWorkerJoinsUnderLoadAndOneDrains) {
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, 150);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "3", "--rebalance", "auto"});
  for (const char* name : {"w1", "w2", "w3"}) ring.AddWorker(name, speeds_.Flags(name, 1e6));
  ASSERT_TRUE(ring.Serves(3));
  Clients clients(ring.address(), kVocab, 150);
  clients.WaitForTokens(200);
  ring.AddWorker("w4", speeds_.Flags("w4", 1e6));
  ASSERT_TRUE(ring.Serves(4));
  const v1::StatusReply four = WaitFor(ring, [](const auto& s) { return s.members_size() == 4; });
  EXPECT_EQ(four.ranges(), "0-2,3-5,6-8,9-11");
  EXPECT_THAT(ring.serve().output(), HasSubstr("a better plan is known"));
  clients.WaitForTokens(200);
  const auto drained = AskDrain(ring.at(), "w2");
  ASSERT_TRUE(drained.ok()) << drained.status();
  clients.WaitForTokens(200);
  const auto texts = clients.Stop();
  EXPECT_GE(texts.size(), 8u);
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  const v1::StatusReply after = WaitFor(ring, [](const auto&) { return true; });
  EXPECT_EQ(after.failed(), 0u);
  EXPECT_EQ(after.lost(), 0u);
  EXPECT_EQ(after.rows_replayed(), 0u);
  fmt::print("longest pause {:.1f} ms\n", after.longest_pause_ms());
}

TEST_F(RebalanceTest, WhoJoinsIsMeasuredAndProposedAndTaken) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  ring.AddWorker("w1", speeds_.Flags("w1", 1e6));
  ring.AddWorker("w2", speeds_.Flags("w2", 2e6));
  ASSERT_TRUE(ring.Serves(2));
  // Unequal machines have unequal shares from the first plan on.
  const v1::StatusReply two = WaitFor(ring, [](const auto& s) { return s.step_ms() > 0; });
  const auto& w1 = MemberOf(two, "w1").layers();
  const auto& w2 = MemberOf(two, "w2").layers();
  EXPECT_LT(w1.end() - w1.begin(), w2.end() - w2.begin());
  EXPECT_EQ(MemberOf(two, "w1").memory_bytes_per_second(), 1e6);
  EXPECT_GT(MemberOf(two, "w1").operations_per_second(), 0);
  const auto none = AskProposed(ring.at());
  EXPECT_THAT(Message(none.status()), HasSubstr("no plan is proposed"));
  ring.AddWorker("w3", speeds_.Flags("w3", 2e6));
  const v1::StatusReply three = WaitFor(ring, [](const auto& s) { return s.has_proposal(); });
  EXPECT_GT(three.proposal().gain(), 1.15);
  EXPECT_THAT(three.proposal().why(), HasSubstr("w3 gets layers"));
  EXPECT_THAT(MemberOf(three, "w3").why(), HasSubstr("in the best plan"));
  // It measured its links to all others.
  std::vector<std::string> links;
  for (const v1::MeasuredLink& l : MemberOf(three, "w3").links()) {
    links.push_back(l.to());
    EXPECT_EQ(l.failure(), "");
    EXPECT_GT(l.round_trip_us(), 0u);
    EXPECT_GT(l.bytes_per_second(), 1e6);
  }
  EXPECT_THAT(links, ::testing::UnorderedElementsAre("coordinator", "w1", "w2"));
  const auto preview = AskProposed(ring.at(), true);
  ASSERT_TRUE(preview.ok()) << preview.status();
  EXPECT_EQ(preview->named_ranges(), three.proposal().ranges());
  EXPECT_EQ(FetchStatus(ring.at())->plans(), 1u) << "that was a dry run";
  const auto taken = AskProposed(ring.at());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->named_ranges(), three.proposal().ranges());
  ASSERT_TRUE(ring.Serves(3));
}

// Two small workers hold a part of the KV cache only; with a third one there is more, which they keep where they can.
TEST_F(RebalanceTest, TheCacheGrowsWithMemoryWhileTextsAreWritten) {
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, 150);
  uint64_t weights = 0, cache = 0;
  {
    Ring whole(model_.path(), {"--no-local"});
    whole.AddWorker("w");
    ASSERT_TRUE(whole.Serves(1));
    weights = FetchStatus(whole.at())->members(0).weight_bytes();
    cache = FetchStatus(whole.at())->members(0).kv_bytes();
  }
  const std::vector<std::string> memory{"--memory", fmt::format("{}k", (weights * 8 / 10 + cache / 2) / 1024)};
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  ring.AddWorker("w1", memory);
  WaitFor(ring, [](const auto& s) { return s.members_size() == 1; });  // it gets the first layers
  ring.AddWorker("w2", memory);
  ASSERT_TRUE(ring.Serves(2));
  const uint64_t few = FetchStatus(ring.at())->memory(0).units();
  Clients clients(ring.address(), kVocab, 150);
  clients.WaitForTokens(200);
  ring.AddWorker("w3", memory);
  ASSERT_TRUE(ring.AsksFor("w1=0-3,w3=4-7,w2=8-11"));
  const v1::StatusReply three = WaitFor(ring, [&](const auto& s) { return s.memory(0).units() > few; });
  EXPECT_THAT(ring.serve().output(), HasSubstr("the KV cache grows"));
  clients.WaitForTokens(200);
  const auto drained = AskDrain(ring.at(), "w3");
  ASSERT_TRUE(drained.ok()) << drained.status();
  clients.WaitForTokens(200);
  const auto two = FetchStatus(ring.at());
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_GE(two->memory(0).units(), few);
  EXPECT_LE(two->memory(0).units(), three.memory(0).units());
  const auto texts = clients.Stop();
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  EXPECT_EQ(FetchStatus(ring.at())->failed(), 0u);
}

// Without known numbers: a real measurement, kept for the next process.
TEST_F(RebalanceTest, AMachineIsMeasuredOnceAStart) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("gyre-measured-{}", getpid());
  std::filesystem::remove_all(folder);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name, {"--cache", folder.string()});
  ASSERT_TRUE(ring.Serves(2));
  const v1::StatusReply status = WaitFor(ring, [](const auto& s) { return s.members_size() == 2; });
  EXPECT_GT(MemberOf(status, "w1").memory_bytes_per_second(), 1e7);
  EXPECT_EQ(MemberOf(status, "w1").memory_bytes_per_second(), MemberOf(status, "w2").memory_bytes_per_second())
      << "the second one found the numbers of the first";
  EXPECT_THAT(ReadSmallFile((folder / "machine-speeds").string()).value_or(""), HasSubstr(" 1 memory "));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gyre::rebalance_test
