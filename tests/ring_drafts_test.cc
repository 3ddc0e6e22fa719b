// A worker that drafts, as processes: texts are the same with it, without it, and where it is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/process_ring.h"
#include "tests/testing/temp_folder.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using testing::Ask;
using testing::Clients;
using ::testing::HasSubstr;
using testing::Ring;

class RingDraftsTest : public testing::ProcessesTest {
 protected:
  static constexpr int kVocab = 96;
  struct Drafted {
    std::vector<TokenId> tokens;
    Usage usage;
  };
  static Drafted RunOnce(const Ring& ring, const Request& request) {
    Drafted out;
    auto target = OpenRemote(ring.at());
    EXPECT_TRUE(target.ok()) << target.status();
    if (!target.ok()) return out;
    const Status status = (*target)->Run(request, [&out](const Event& event) {
      if (const auto* t = std::get_if<TokenEvent>(&event)) out.tokens.push_back(t->token);
      if (const auto* f = std::get_if<Finished>(&event)) out.usage = f->usage;
    });
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  testing::Process& AddDrafter(Ring& ring, const std::string& name, const std::string& model) {
    return ring.AddWorker(name, {"--drafts", model});
  }
};

TEST_F(RingDraftsTest, TextsAreTheSameWithItAndWhereItIsKilled) {
  Ring ring(model_.path(), {"--speculation", "draft", "--no-local", "--min-workers", "2"});
  ring.AddWorker("w0");
  ring.AddWorker("w1");
  ASSERT_TRUE(ring.Serves(2));
  std::vector<Drafted> without, with, after;
  for (int seed = 0; seed < 4; ++seed) without.push_back(RunOnce(ring, Ask(seed, kVocab, 400)));
  testing::Process& drafter = AddDrafter(ring, "d", model_.path());
  ASSERT_TRUE(drafter.WaitFor("drafts for ").has_value()) << drafter.output();
  ASSERT_TRUE(ring.serve().WaitFor("d drafts for this coordinator").has_value()) << ring.serve().output();
  for (int seed = 0; seed < 4; ++seed) with.push_back(RunOnce(ring, Ask(seed, kVocab, 400)));
  uint64_t accepted = 0, drafted = 0;
  for (size_t i = 0; i < with.size(); ++i) {
    EXPECT_EQ(with[i].tokens, without[i].tokens);
    EXPECT_EQ(without[i].usage.drafted_tokens, 0u);
    accepted += with[i].usage.accepted_drafts;
    drafted += with[i].usage.drafted_tokens;
  }
  // It is the model itself, so that nearly all of its guesses come true.
  EXPECT_GE(drafted, 4u);
  EXPECT_GE(accepted * 10, drafted * 9);
  Clients clients(ring.at(), kVocab, 40);
  clients.WaitForTokens(100);
  drafter.Kill(SIGKILL);
  clients.WaitForTokens(200);
  testing::Process& next = AddDrafter(ring, "e", model_.path());
  ASSERT_TRUE(next.WaitFor("drafts for ").has_value()) << next.output();
  clients.WaitForTokens(100);
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, 40);
  for (const auto& text : clients.Stop()) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << text.seed;
  }
  EXPECT_THAT(ring.serve().output(), HasSubstr("d drafts no more"));
  next.Kill(SIGTERM);
  EXPECT_EQ(next.Wait(seconds(20)), 0) << next.output();
}

TEST_F(RingDraftsTest, WhatCanNotDraftIsRefusedWithTheReason) {
  const testing::TinyModelFile other{testing::TinyOptions{.vocab = 80}};
  Ring ring(model_.path(), {});
  testing::Process& foreign = AddDrafter(ring, "foreign", other.path());
  EXPECT_EQ(foreign.Wait(seconds(20)), 1);
  EXPECT_THAT(foreign.output(), HasSubstr("can't draft for"));
  testing::Process& first = AddDrafter(ring, "first", model_.path());
  ASSERT_TRUE(first.WaitFor("drafts for ").has_value()) << first.output();
  ASSERT_TRUE(ring.serve().WaitFor("first drafts for this coordinator").has_value());
  testing::Process& second = AddDrafter(ring, "second", model_.path());
  EXPECT_EQ(second.Wait(seconds(20)), 1);
  EXPECT_THAT(second.output(), HasSubstr("refuses this worker's drafts: first drafts for this coordinator already"));
  Ring off(model_.path(), {"--speculation", "off"});
  testing::Process& unwanted = AddDrafter(off, "unwanted", model_.path());
  EXPECT_EQ(unwanted.Wait(seconds(20)), 1);
  EXPECT_THAT(unwanted.output(), HasSubstr("takes no drafts of others"));
}

TEST_F(RingDraftsTest, ItWaitsForTheCoordinatorAndComesBack) {
  const testing::TempFolder state;
  Ring ring(model_.path(), {"--state", state.path()});
  testing::Process& drafter = AddDrafter(ring, "d", model_.path());
  ASSERT_TRUE(drafter.WaitFor("drafts for ").has_value()) << drafter.output();
  ring.Restart();
  ASSERT_TRUE(ring.serve().WaitFor("d drafts for this coordinator").has_value())
      << ring.serve().output() << drafter.output();
}

}  // namespace
}  // namespace gyre
