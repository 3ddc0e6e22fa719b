// Frames byte for byte, and the contract that every carrier keeps.
#include "transport/link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "base/crc32c.h"
#include "base/step_codec.h"
#include "tests/testing/tcp_pair.h"
#include "transport/inproc_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

std::string Hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte b : bytes) out += fmt::format("{:02x}", static_cast<int>(b));
  return out;
}

FrameHeader SampleHeader() {
  return {.kind = FrameKind::kHidden,
          .dtype = WireType::kF32,
          .epoch = {.term = 0x0102030405060708, .number = 9},
          .step = StepId{0x1122},
          .rows = 3,
          .length = 0x4000,
          .payload_crc = 0xAABBCCDD};
}

TEST(Crc32cTest, MatchesTheVectorsOfRfc3720) {
  std::vector<std::byte> bytes(32, std::byte{0});
  EXPECT_EQ(Crc32c(bytes), 0x8A9136AAu);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});
  EXPECT_EQ(Crc32c(bytes), 0x62A8AB43u);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Crc32c(bytes), 0x46DD794Eu);
  for (size_t n = 0; n < 32; ++n) {
    const std::span<const std::byte> part(bytes.data(), n);
    EXPECT_EQ(Crc32c(part), Crc32cPortable(part));
    EXPECT_EQ(Crc32c(std::span(bytes).subspan(n), Crc32c(part)), 0x46DD794Eu);
  }
}

TEST(FrameTest, TheHeaderIsPinned) {
  const auto bytes = EncodeHeader(SampleHeader());
  const std::string crc = Hex(std::span(bytes).last(4));
  EXPECT_EQ(Hex(bytes),
            "47595245"
            "0100"
            "4000"
            "0300"
            "02"
            "00"
            "03000000"
            "0807060504030201"
            "0900000000000000"
            "2211000000000000"
            "0040000000000000"
            "ddccbbaa"
            "00000000"
            "00000000"
            "dc872a98");
  EXPECT_EQ(crc, fmt::format("{:08x}", __builtin_bswap32(Crc32cPortable(std::span(bytes).first(60)))));
  auto back = DecodeHeader(EncodeHeader(SampleHeader()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, SampleHeader());
}

TEST(FrameTest, EveryFlippedBitAndEveryCutIsFound) {
  const auto good = EncodeHeader(SampleHeader());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_TRUE(absl::IsDataLoss(DecodeHeader(bad).status())) << bit;
  }
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(DecodeHeader(std::span(good).first(n)).ok());
  FrameHeader huge = SampleHeader();
  huge.length = uint64_t{1} << 62;
  EXPECT_TRUE(absl::IsDataLoss(DecodeHeader(EncodeHeader(huge)).status()));
}

TEST(FrameTest, TheTypesOfRowsAreKnownAndNoOther) {
  FrameHeader header = SampleHeader();
  for (int type = 0; type <= 255; ++type) {
    header.dtype = static_cast<WireType>(type);
    const auto back = DecodeHeader(EncodeHeader(header));
    EXPECT_EQ(back.ok(), type <= 4) << type;
    if (back.ok()) EXPECT_EQ(back->dtype, header.dtype);
    if (!back.ok()) EXPECT_EQ(Message(back.status()), fmt::format("frame header: type {} is unknown", type));
  }
  EXPECT_EQ(static_cast<int>(WireType::kF16), 3);
  EXPECT_EQ(static_cast<int>(WireType::kQ8), 4);
}

StepBatch RandomBatch(std::mt19937& random) {
  StepBatch batch;
  const size_t n = 1 + random() % 4;
  for (size_t i = 0; i < n; ++i) {
    SeqRows s{.seq = SeqId{i + 1},
              .incarnation = static_cast<uint32_t>(random()),
              .model = 3,
              .adapter = 0,
              .row_class = random() % 2 ? RowClass::kPrompt : RowClass::kGenerated,
              .first_position = static_cast<uint32_t>(random() % 1000),
              .row_count = 1 + static_cast<uint32_t>(random() % 9),
              .blocks = {{1, 2, kNoBlock}, {}},
              .requests = {}};
    RowRequest r{.first = s.row_count - 1,
                 .count = 1,
                 .mode = RowMode::kTopK,
                 .k = 5,
                 .temperature = 0.5f,
                 .touched = {1, 7, 9},
                 .mask = {5, 6}};
    if (random() % 2) r.logprobs = random() % (kMaxTopK + 1);
    if (random() % 2) s.requests.push_back(r);
    batch.seqs.push_back(s);
  }
  return batch;
}

TEST(StepCodecTest, RoundTripsAndRefusesEveryCut) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const StepBatch batch = RandomBatch(random);
    Encoder out;
    EncodeStepPrefix(batch, &out);
    std::vector<std::byte> payload(out.bytes().begin(), out.bytes().end());
    payload.resize(payload.size() + batch.TotalRows() * 4);
    auto back = DecodeStepPayload(payload, 4);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->batch, batch);
    EXPECT_EQ(back->rows.size(), batch.TotalRows() * 4);
    for (size_t n = 0; n < payload.size(); ++n) EXPECT_FALSE(DecodeStepPayload(std::span(payload).first(n), 4).ok());
    for (int flips = 0; flips < 50; ++flips) {  // whatever comes: an error or a checked batch, never more memory
      auto bad = payload;
      bad[random() % bad.size()] ^= static_cast<std::byte>(1 << (random() % 8));
      (void)DecodeStepPayload(bad, 4);
    }
  }
}

TEST(StepCodecTest, RefusesWhatContradictsItself) {
  auto refused = [](auto change) {
    std::mt19937 random(4);
    StepBatch batch = RandomBatch(random);
    batch.seqs.resize(1);
    batch.seqs[0].row_count = 4;
    batch.seqs[0].requests = {
        {.first = 3, .count = 1, .mode = RowMode::kTopK, .k = 5, .temperature = 0, .touched = {1, 2}, .mask = {}}};
    change(batch);
    Encoder out;
    EncodeStepPrefix(batch, &out);
    std::vector<std::byte> payload(out.bytes().begin(), out.bytes().end());
    payload.resize(payload.size() + batch.TotalRows() * size_t{4});
    return !DecodeStepPayload(payload, 4).ok();
  };
  EXPECT_FALSE(refused([](StepBatch&) {}));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].row_count = 0; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs.push_back(b.seqs[0]); }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].first_position = 0x7FFFFFFF; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].k = 0; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].k = kMaxTopK + 1; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].count = 2; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].touched = {2, 2}; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].temperature = -1; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests.push_back(b.seqs[0].requests[0]); }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].blocks.clear(); }));
  EXPECT_FALSE(refused([](StepBatch& b) { b.seqs[0].requests[0].logprobs = kMaxTopK; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].logprobs = kMaxTopK + 1; }));
  const RowRequest hidden{.first = 3, .mode = RowMode::kHidden};
  EXPECT_FALSE(refused([&](StepBatch& b) { b.seqs[0].requests[0] = hidden; }));
  EXPECT_TRUE(refused([&](StepBatch& b) {
    b.seqs[0].requests[0] = hidden;
    b.seqs[0].requests[0].logprobs = 0;
  }));
}

TEST(StepCodecTest, AnswersRoundTrip) {
  StepAnswer answer;
  answer.rows.push_back({.seq = SeqId{4},
                         .incarnation = 1,
                         .position = 9,
                         .mode = RowMode::kTopK,
                         .touched = {{1, 2.5f}},
                         .top = {{3, 1.f}, {2, 0.5f}},
                         .log_sum_exp = 1.25,
                         .log_sum_exp_t = 2.5,
                         .values = {1, 2},
                         .best = {{5, 3.f}, {1, 2.5f}, {3, 1.f}},
                         .log_sum_exp_all = 3.5});
  Encoder out;
  EncodeStepAnswer(answer, &out);
  EXPECT_EQ(*DecodeStepAnswer(out.bytes()), answer);
  for (size_t n = 0; n < out.size(); ++n) EXPECT_FALSE(DecodeStepAnswer(out.bytes().first(n)).ok());
  out.Reset();
  const LogitsAnswer logits{.question = {.seq = SeqId{1}, .incarnation = 2, .model = 3, .position = 4},
                            .logits = {1, 2, 3}};
  EncodeLogitsAnswer(logits, &out);
  EXPECT_EQ(*DecodeLogitsAnswer(out.bytes()), logits);
  out.Reset();
  EncodeStepError({.stage = 2, .message = "what went wrong"}, &out);
  EXPECT_EQ(DecodeStepError(out.bytes())->message, "what went wrong");
}

using Pair = std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>>;
struct Carrier {
  const char* name;
  Pair (*make)();
};

Status Put(Link& link, uint64_t number, size_t bytes, Deadline deadline = kNoDeadline) {
  std::vector<std::byte> all(bytes);
  for (size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i < bytes / 2 ? number : number + 1);
  const ByteSpan parts[] = {ByteSpan(all).first(bytes / 2), ByteSpan(all).subspan(bytes / 2)};
  return link.Send({.kind = FrameKind::kHidden, .step = StepId{number}}, parts, deadline);
}

class LinkContract : public ::testing::TestWithParam<Carrier> {
 protected:
  Pair pair_ = GetParam().make();
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

// Both send more than fits before either receives: only what they do while they wait lets them get on.
TEST_P(LinkContract, ASenderCanReceiveWhileItWaits) {
  constexpr uint64_t kFrames = 300;
  auto run = [](Link& link) {
    uint64_t received = 0;
    auto take = [&](Deadline deadline) {
      auto frame = link.Recv(deadline);
      if (frame.ok()) received += frame->header.step == StepId{received} ? 1 : 0;
      return frame.ok();
    };
    const std::vector<std::byte> big(50000);
    const ByteSpan parts[] = {big};
    for (uint64_t i = 0; i < kFrames; ++i) {
      const Status status = link.Send({.kind = FrameKind::kHidden, .step = StepId{i}}, parts, kNoDeadline, [&] {
        while (take(Clock::now())) {
        }
      });
      ASSERT_TRUE(status.ok()) << status;
    }
    while (received < kFrames) ASSERT_TRUE(take(After(std::chrono::seconds(20)))) << received;
  };
  std::thread other(run, std::ref(a_));
  run(b_);
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

INSTANTIATE_TEST_SUITE_P(
    Carriers, LinkContract,
    ::testing::Values(
        Carrier{"inproc", [] { return MakeInprocLinkPair({.max_queued_frames = 64}); }},
        Carrier{"inproc_crc", [] { return MakeInprocLinkPair({.max_queued_bytes = 9000, .check_crc = true}); }},
        Carrier{"tcp", [] { return testing::TcpPair(); }},
        Carrier{"tcp_small_buffers", [] { return testing::TcpPair({.send_buffer = 32768, .receive_buffer = 32768}); }},
        Carrier{"tcp_chopped", [] { return testing::ChoppedTcpPair(1); }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gyre
