// A thread that waits for frames and for commands: neither waits for the other.
#include "transport/link_inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/tcp_pair.h"
#include "transport/framed_link.h"
#include "transport/inproc_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using IfCommands = LinkInbox::IfCommands;

constexpr seconds kTimeout{60};

class LinkInboxTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      auto [a, b] = testing::TcpPair();
      near_ = std::move(a);
      far_ = std::move(b);
    } else {
      auto [a, b] = MakeInprocLinkPair({});
      near_ = std::move(a);
      far_ = std::move(b);
    }
  }
  void SendFrame(uint64_t step) {
    ASSERT_TRUE(far_->Send({.kind = FrameKind::kTokens, .step = StepId{step}}, {}, After(kTimeout)).ok());
  }
  LinkInbox inbox_;
  std::unique_ptr<Link> near_, far_;
};

// A carrier whose Read takes in the event of a Wake that came meanwhile, as a ring of completions does.
class SwallowingStream : public ByteStream {
 public:
  StatusOr<size_t> Write(std::span<const iovec> parts) override { return parts[0].iov_len; }
  StatusOr<std::optional<size_t>> Read(std::span<std::byte>) override {
    if (Link* link = std::exchange(wakes, nullptr); link != nullptr) {
      link->Wake();
      woken_ = false;
    }
    return std::nullopt;
  }
  Status Wait(Ready, Deadline deadline) override {
    while (!woken_.exchange(false)) {
      if (Clock::now() >= deadline) return DeadlineExceeded("nothing came");
      std::this_thread::sleep_for(milliseconds(1));
    }
    return absl::OkStatus();
  }
  void Wake() override { woken_ = true; }
  void Close() override { woken_ = true; }
  Transport transport() const override { return Transport::kTcp; }

  Link* wakes = nullptr;  // by the next Read

 private:
  std::atomic<bool> woken_{false};
};

TEST(FramedLinkWake, AWakeWhoseEventAReadTakesInIsNotLost) {
  auto stream = std::make_unique<SwallowingStream>();
  SwallowingStream& s = *stream;
  auto link = MakeFramedLink(std::move(stream), "a peer");
  ASSERT_TRUE(link.ok());
  s.wakes = link->get();
  EXPECT_TRUE(absl::IsCancelled((*link)->Recv(After(seconds(5))).status()));
}

TEST_P(LinkInboxTest, CommandsComeInOrder) {
  std::vector<int> ran;
  for (int i = 0; i < 3; ++i) inbox_.Push([&ran, i] { ran.push_back(i); });
  (*inbox_.TryPop())();
  std::deque<LinkInbox::Command> rest;
  inbox_.TakeAll(&rest);
  for (auto& command : rest) command();
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2}));
  EXPECT_FALSE(inbox_.TryPop().has_value());
}

TEST_P(LinkInboxTest, WithCommandsItReturnsOrLooks) {
  SendFrame(1);
  inbox_.Push([] {});
  EXPECT_TRUE(absl::IsCancelled(inbox_.Recv(*near_, After(kTimeout), IfCommands::kReturn).status()));
  auto frame = near_->Recv(After(kTimeout));  // it is here by now
  ASSERT_TRUE(frame.ok()) << "kReturn left it there: " << frame.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(inbox_.Recv(*near_, kNoDeadline, IfCommands::kLook).status()));
  SendFrame(2);
  StatusOr<Frame> looked = Unavailable("not yet");
  for (const Deadline end = After(kTimeout); !looked.ok() && Clock::now() < end;)
    looked = inbox_.Recv(*near_, kNoDeadline, IfCommands::kLook);
  ASSERT_TRUE(looked.ok()) << looked.status();
  EXPECT_EQ(looked->header.step, StepId{2});
}

TEST_P(LinkInboxTest, ACommandEndsAWaitForAFrame) {
  std::thread other([this] {
    std::this_thread::sleep_for(milliseconds(20));
    inbox_.Push([] {});
  });
  EXPECT_TRUE(absl::IsCancelled(inbox_.Recv(*near_, After(kTimeout), IfCommands::kLook).status()));
  EXPECT_TRUE(inbox_.TryPop().has_value());
  other.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(inbox_.Recv(*near_, After(milliseconds(1)), IfCommands::kReturn).status()));
}

// Without a limit to any wait: a wakeup that is lost would stop the test for ever.
TEST_P(LinkInboxTest, NoWakeupIsLost) {
  constexpr int kCommands = 3000, kFrames = 3000;
  int commands = 0, frames = 0;
  std::thread pushing([this, &commands] {
    for (int i = 0; i < kCommands; ++i) {
      inbox_.Push([&commands] { ++commands; });
      if (i % 64 == 0) std::this_thread::sleep_for(milliseconds(1));
    }
  });
  std::thread sending([this] {
    for (int i = 0; i < kFrames; ++i) SendFrame(static_cast<uint64_t>(i));
  });
  for (int turn = 0; commands < kCommands || frames < kFrames; ++turn) {
    while (auto command = inbox_.TryPop()) (*command)();
    if (frames == kFrames) {
      if (commands < kCommands) inbox_.Wait(kNoDeadline);
      continue;
    }
    if (commands == kCommands && turn % 2 == 0) continue;
    const auto frame = inbox_.Recv(*near_, kNoDeadline, turn % 2 == 0 ? IfCommands::kReturn : IfCommands::kLook);
    if (frame.ok()) {
      EXPECT_EQ(frame->header.step, StepId{static_cast<uint64_t>(frames)});
      ++frames;
    }
  }
  pushing.join();
  sending.join();
  EXPECT_EQ(commands, kCommands);
}

INSTANTIATE_TEST_SUITE_P(Carriers, LinkInboxTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "tcp" : "memory"; });

}  // namespace
}  // namespace gyre
