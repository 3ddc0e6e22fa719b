// Sending that does not wait for the peer.
#include "transport/queued_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/carriers.h"
#include "transport/inproc_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

Status SendBytes(Link& link, uint64_t number, size_t bytes, Deadline deadline = kNoDeadline) {
  const std::vector<std::byte> payload(bytes, std::byte{static_cast<uint8_t>(number)});
  const ByteSpan parts[] = {ByteSpan(payload).first(bytes / 3), ByteSpan(payload).subspan(bytes / 3)};
  return link.Send({.kind = FrameKind::kHidden, .step = StepId{number}}, parts, deadline);
}

// The frame that comes has this number, and the bytes that SendBytes gave it.
void ExpectBytes(Link& link, uint64_t number, size_t bytes) {
  const StatusOr<Frame> frame = link.Recv(After(seconds(60)));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header.step, StepId{number});
  EXPECT_EQ(frame->payload, std::vector<std::byte>(bytes, std::byte{static_cast<uint8_t>(number)}));
}

testing::LinkPair SmallTcp() { return testing::TcpPair({{}, {.send_buffer = 32768, .receive_buffer = 32768}}); }

TEST(QueuedLinkTest, NothingWaitsForAPeerThatReadsNothing) {
  for (const bool memory : {false, true}) {
    testing::LinkPair pair = memory ? MakeInprocLinkPair({.max_queued_frames = 2}) : SmallTcp();
    const auto link = MakeQueuedLink(std::move(pair.first));
    constexpr size_t kBytes = 100000;
    for (uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(SendBytes(*link, i, kBytes + i).ok());
    for (uint64_t i = 0; i < 50; ++i) ExpectBytes(*pair.second, i, kBytes + i);
    // What there is room for again is sent by this thread, after all that waited.
    ASSERT_TRUE(SendBytes(*link, 50, 10).ok());
    ExpectBytes(*pair.second, 50, 10);
  }
}

TEST(QueuedLinkTest, ATcpLinkTakesAtOnceWhatItsRoomPromises) {
  testing::LinkPair pair = testing::TcpPair({{}, {.send_buffer = 262144, .receive_buffer = 32768}});
  for (uint64_t round = 0; round < 3; ++round) {
    uint64_t sent = 0;
    const auto bytes = [](uint64_t number) { return number % 5 == 0 ? 20000 : 300; };
    for (; pair.first->Room() >= static_cast<size_t>(bytes(sent)); ++sent) {
      ASSERT_TRUE(SendBytes(*pair.first, sent, bytes(sent), Clock::now()).ok()) << sent;
    }
    ASSERT_GT(sent, 10u);
    for (uint64_t i = 0; i < sent; ++i) ExpectBytes(*pair.second, i, bytes(i));
    // The bytes that the peer has acknowledged are room again.
    for (const Deadline late = After(seconds(20)); pair.first->Room() < 65536; std::this_thread::yield())
      ASSERT_LT(Clock::now(), late);
  }
}

TEST(QueuedLinkTest, BeyondItsLimitItWaits) {
  auto [near, far] = MakeInprocLinkPair({.max_queued_frames = 1});
  const auto link = MakeQueuedLink(std::move(near), 1000);
  ASSERT_TRUE(SendBytes(*link, 0, 5000).ok());  // in memory
  ASSERT_TRUE(SendBytes(*link, 1, 5000).ok()) << "one frame always fits";
  const Status full = SendBytes(*link, 2, 1, After(milliseconds(20)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(full)) << full;
  std::thread reader([&far = *far] { ExpectBytes(far, 0, 5000); });
  ASSERT_TRUE(SendBytes(*link, 2, 600, After(seconds(60))).ok());
  reader.join();
  ExpectBytes(*far, 1, 5000);
  ExpectBytes(*far, 2, 600);
}

TEST(QueuedLinkTest, WhatCouldNotBeSentIsToldByTheNextSend) {
  {
    testing::LinkPair pair = SmallTcp();
    const auto link = MakeQueuedLink(std::move(pair.first));
    ASSERT_TRUE(SendBytes(*link, 0, 10 << 20).ok());
    pair.second->Close();
    Status status;
    while ((status = SendBytes(*link, 1, 10)).ok()) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  auto [near, far] = MakeInprocLinkPair({.max_queued_frames = 1});
  const auto link = MakeQueuedLink(std::move(near));
  ASSERT_TRUE(SendBytes(*link, 0, 10).ok());
  ASSERT_TRUE(SendBytes(*link, 1, 10, After(milliseconds(20))).ok());
  Status status;
  while ((status = SendBytes(*link, 2, 10)).ok()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_THAT(Message(status), HasSubstr("takes nothing in"));
  ExpectBytes(*far, 0, 10);
  EXPECT_TRUE(absl::IsUnavailable(far->Recv(After(seconds(60))).status())) << "a frame is missing, so the link ends";
}

TEST(QueuedLinkTest, ClosingEndsAllWaits) {
  testing::LinkPair pair = SmallTcp();
  auto link = MakeQueuedLink(std::move(pair.first), 1 << 20);
  ASSERT_TRUE(SendBytes(*link, 0, 10 << 20).ok());
  std::thread closer([&link = *link] {
    std::this_thread::sleep_for(milliseconds(20));
    link.Close();
  });
  EXPECT_TRUE(absl::IsUnavailable(SendBytes(*link, 1, 10)));
  closer.join();
  EXPECT_TRUE(absl::IsUnavailable(SendBytes(*link, 2, 10)));
  link.reset();  // does not wait for the peer
}

}  // namespace
}  // namespace gyre
