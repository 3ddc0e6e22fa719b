// The contract that every carrier keeps, also where its buffers are small and its bytes come in pieces.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/testing/carriers.h"
#include "transport/queued_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Carrier;

Status Put(Link& link, uint64_t number, size_t bytes, Deadline deadline = kNoDeadline) {
  std::vector<std::byte> all(bytes);
  for (size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i < bytes / 2 ? number : number + 1);
  const ByteSpan parts[] = {ByteSpan(all).first(bytes / 2), ByteSpan(all).subspan(bytes / 2)};
  return link.Send({.kind = FrameKind::kHidden, .step = StepId{number}}, parts, deadline);
}

class LinkContract : public ::testing::TestWithParam<Carrier> {
 protected:
  testing::LinkPair pair_ = GetParam().make();
  Link& a_ = *pair_.first;
  Link& b_ = *pair_.second;
};

TEST_P(LinkContract, WholeFramesInOrderExactlyOnceBothWays) {
  constexpr uint64_t kFrames = 2000;
  auto send = [](Link& link) {
    for (uint64_t i = 0; i < kFrames; ++i) ASSERT_TRUE(Put(link, i, i % 700).ok());
  };
  auto receive = [](Link& link) {
    for (uint64_t i = 0; i < kFrames; ++i) {
      auto frame = link.Recv(After(std::chrono::seconds(20)));
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(frame->header.step, StepId{i});
      ASSERT_EQ(frame->payload.size(), i % 700);
      if (i % 700 > 1) ASSERT_EQ(frame->payload.back(), static_cast<std::byte>(i + 1));
    }
    EXPECT_TRUE(absl::IsDeadlineExceeded(link.Recv(Clock::now()).status()));
  };
  std::thread t1(send, std::ref(a_)), t2(send, std::ref(b_)), t3(receive, std::ref(a_));
  receive(b_);
  t1.join(), t2.join(), t3.join();
}

TEST_P(LinkContract, WhatWasSentBeforeCloseStillArrives) {
  ASSERT_TRUE(Put(a_, 1, 10).ok());
  ASSERT_TRUE(Put(a_, 2, 10).ok());
  a_.Close();
  a_.Close();
  EXPECT_EQ(b_.Recv(kNoDeadline)->header.step, StepId{1});
  EXPECT_EQ(b_.Recv(kNoDeadline)->header.step, StepId{2});
  EXPECT_TRUE(absl::IsUnavailable(b_.Recv(kNoDeadline).status()));
  EXPECT_TRUE(absl::IsUnavailable(Put(b_, 3, 1)));
}

TEST_P(LinkContract, CloseWakesAReceiver) {
  std::thread closer([this] {
    std::this_thread::sleep_for(milliseconds(20));
    b_.Close();
  });
  EXPECT_TRUE(absl::IsUnavailable(b_.Recv(kNoDeadline).status()));
  closer.join();
}

// A frame that is refused by its deadline is not sent at all; one that was begun arrives whole.
TEST_P(LinkContract, AFullLinkRefusesOrFinishesAndLosesNothing) {
  std::atomic<uint64_t> sent{0};
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    while (!stop) {
      const Status status = Put(a_, sent, 1000, After(milliseconds(5)));
      if (status.ok()) ++sent;
      if (!status.ok()) ASSERT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    }
  });
  for (uint64_t before = 1; before != sent;) {  // until it is full
    before = sent;
    std::this_thread::sleep_for(milliseconds(50));
  }
  stop = true;
  uint64_t received = 0;
  for (bool last = false; received < sent || !last;) {
    if (received == sent && !last) {
      sender.join();
      last = true;
      continue;
    }
    auto frame = b_.Recv(After(std::chrono::seconds(20)));
    ASSERT_TRUE(frame.ok()) << frame.status();
    ASSERT_EQ(frame->header.step, StepId{received++});
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(b_.Recv(After(milliseconds(20))).status()));
}

// Both send more than fits before either receives, which stands still where a Send waits.
TEST_P(LinkContract, QueuedEndsThatBothSendFirstDoNotStandStill) {
  constexpr uint64_t kFrames = 300;
  const auto a = MakeQueuedLink(std::move(pair_.first)), b = MakeQueuedLink(std::move(pair_.second));
  auto run = [](Link& link) {
    for (uint64_t i = 0; i < kFrames; ++i) ASSERT_TRUE(Put(link, i, 50000).ok());
    for (uint64_t i = 0; i < kFrames; ++i) {
      const StatusOr<Frame> frame = link.Recv(After(seconds(60)));
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(frame->header.step, StepId{i});
      ASSERT_EQ(frame->payload.back(), static_cast<std::byte>(i + 1));
    }
  };
  std::thread other(run, std::ref(*a));
  run(*b);
  other.join();
}

TEST_P(LinkContract, AWakeEndsAWaitOrTheNextOne) {
  b_.Wake();
  EXPECT_TRUE(absl::IsCancelled(b_.Recv(kNoDeadline).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(b_.Recv(Clock::now()).status()));
  std::thread waker([this] {
    std::this_thread::sleep_for(milliseconds(20));
    b_.Wake();
  });
  EXPECT_TRUE(absl::IsCancelled(b_.Recv(kNoDeadline).status()));
  waker.join();
  ASSERT_TRUE(Put(a_, 7, 1000).ok());
  b_.Wake();
  EXPECT_TRUE(absl::IsCancelled(b_.Recv(kNoDeadline).status()));
  EXPECT_EQ(b_.Recv(kNoDeadline)->header.step, StepId{7});
}

std::vector<std::byte> RandomBytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Larger than any buffer, cut into more parts than a system call takes, some of them empty; then an empty frame.
TEST_P(LinkContract, EveryByteOfLargeFramesOfManyPartsArrives) {
  const std::vector<std::byte> all = RandomBytes(3'300'017, 1);
  std::vector<ByteSpan> parts;
  std::mt19937 random(2);
  for (size_t at = 0; at < all.size();) {
    const size_t n = std::min<size_t>(random() % 9 == 0 ? 0 : random() % 40000, all.size() - at);
    parts.push_back(ByteSpan(all).subspan(at, n));
    at += n;
  }
  ASSERT_GT(parts.size(), 64u);
  std::thread sender([&] {
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(a_.Send({.kind = FrameKind::kHidden, .step = StepId{i}, .rows = 7}, parts, kNoDeadline).ok());
      ASSERT_TRUE(a_.Send({.kind = FrameKind::kAnswer, .step = StepId{i}}, {}, kNoDeadline).ok());
    }
  });
  for (uint64_t i = 0; i < 3; ++i) {
    auto frame = b_.Recv(After(seconds(60)));
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->header.kind, FrameKind::kHidden);
    EXPECT_EQ(frame->header.rows, 7u);
    EXPECT_TRUE(frame->payload == all);
    frame = b_.Recv(After(seconds(60)));
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->header.kind, FrameKind::kAnswer);
    EXPECT_EQ(frame->payload.size(), 0u);
  }
  sender.join();
}

TEST_P(LinkContract, CloseEndsASenderThatWaits) {
  const std::vector<std::byte> big(1 << 20);
  const ByteSpan parts[] = {big};
  std::thread closer([this] {
    std::this_thread::sleep_for(milliseconds(50));
    a_.Close();
  });
  Status status;
  while (status.ok()) status = a_.Send({.kind = FrameKind::kHidden}, parts, kNoDeadline);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  closer.join();
}

TEST_P(LinkContract, AnEndThatIsDestroyedIsAnEndThatClosed) {
  ASSERT_TRUE(Put(a_, 1, 5000).ok());
  pair_.first.reset();
  EXPECT_EQ(b_.Recv(After(seconds(20)))->header.step, StepId{1});
  EXPECT_TRUE(absl::IsUnavailable(b_.Recv(After(seconds(20))).status()));
}

TEST_P(LinkContract, WakesAndFramesAtTheSameTimeLoseNothing) {
  constexpr uint64_t kFrames = 500;
  std::atomic<bool> done{false};
  std::thread waker([&] {
    while (!done) {
      b_.Wake();
      std::this_thread::yield();
    }
  });
  std::thread sender([&] {
    for (uint64_t i = 0; i < kFrames; ++i) {
      ASSERT_TRUE(Put(a_, i, i * 37 % 5000).ok());
      if (i % 50 == 0) std::this_thread::sleep_for(milliseconds(1));
    }
  });
  for (uint64_t i = 0; i < kFrames;) {
    auto frame = b_.Recv(After(seconds(20)));
    if (absl::IsCancelled(frame.status())) continue;
    ASSERT_TRUE(frame.ok()) << frame.status();
    ASSERT_EQ(frame->header.step, StepId{i++});
  }
  done = true;
  waker.join();
  sender.join();
}

TEST_P(LinkContract, BothEndsSayWhatCarriesThem) {
  EXPECT_EQ(a_.transport(), GetParam().transport);
  EXPECT_EQ(b_.transport(), GetParam().transport);
}

INSTANTIATE_TEST_SUITE_P(Carriers, LinkContract, ::testing::ValuesIn(testing::AllCarriers()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gyre
