// Frames and what they carry, byte for byte.
#include "transport/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/crc32c.h"
#include "base/step_codec.h"

namespace gyre {
namespace {

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
          .payload_crc = 0xAABBCCDD,
          .computed_us = 0x01020304,
          .slowest_us = 0x0506,
          .queued = true};
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
            "01"
            "03000000"
            "0807060504030201"
            "0900000000000000"
            "2211000000000000"
            "0040000000000000"
            "ddccbbaa"
            "04030201"
            "06050000"
            "9225f3da");
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
                 .biased = {1, 7, 9},
                 .mask = {5, 6}};
    if (random() % 2) r.logprobs = random() % (kMaxTopK + 1);
    if (random() % 2) s.requests.push_back(r);
    if (random() % 2) {
      s.mtp = {.next = std::vector<TokenId>(s.row_count + 1, 7), .first = s.row_count - 1, .most = random() % 4};
      s.mtp->next.back() = MtpRows::kUnknown;
    }
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
        {.first = 3, .count = 1, .mode = RowMode::kTopK, .k = 5, .temperature = 0, .biased = {1, 2}, .mask = {}}};
    change(batch);
    Encoder out;
    EncodeStepPrefix(batch, &out);
    std::vector<std::byte> payload(out.bytes().begin(), out.bytes().end());
    payload.resize(payload.size() + batch.TotalRows() * size_t{4});
    return !DecodeStepPayload(payload, 4).ok();
  };
  EXPECT_FALSE(refused([](StepBatch&) {}));
  const auto drafts = [](MtpRows rows) { return [rows](StepBatch& b) { b.seqs[0].mtp = rows; }; };
  EXPECT_FALSE(refused(drafts({.next = {1, 2, 3, 4, -1}, .first = 4, .most = kMaxMtpDrafts})));
  EXPECT_TRUE(refused(drafts({.next = {1, 2, 3, 4}, .first = 3, .most = 1})));
  EXPECT_TRUE(refused(drafts({.next = {1, 2, 3, 4, -1}, .first = 5, .most = 1})));
  EXPECT_TRUE(refused(drafts({.next = {1, 2, 3, 4, -1}, .first = 3, .most = kMaxMtpDrafts + 1})));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].row_count = 0; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs.push_back(b.seqs[0]); }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].first_position = 0x7FFFFFFF; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].k = 0; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].k = kMaxTopK + 1; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].count = 2; }));
  EXPECT_TRUE(refused([](StepBatch& b) { b.seqs[0].requests[0].biased = {2, 2}; }));
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
                         .biased = {{1, 2.5f}},
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
  // Drafts stand behind all rows.
  const size_t without = out.size();
  answer.rows.push_back({.seq = SeqId{5}, .drafts = {4, 5, 6}});
  answer.drafts_us = 70;
  out.Reset();
  EncodeStepAnswer(answer, &out);
  EXPECT_EQ(*DecodeStepAnswer(out.bytes()), answer);
  size_t readable = 0;
  for (size_t n = 0; n < out.size(); ++n) readable += DecodeStepAnswer(out.bytes().first(n)).ok() ? 1 : 0;
  EXPECT_EQ(readable, 1u) << "only a cut between rows and drafts leaves an answer";
  EXPECT_GT(out.size(), without);
  out.Reset();
  const LogitsAnswer logits{.question = {.seq = SeqId{1}, .incarnation = 2, .model = 3, .position = 4},
                            .logits = {1, 2, 3}};
  EncodeLogitsAnswer(logits, &out);
  EXPECT_EQ(*DecodeLogitsAnswer(out.bytes()), logits);
  out.Reset();
  EncodeStepError({.stage = 2, .message = "what went wrong"}, &out);
  EXPECT_EQ(DecodeStepError(out.bytes())->message, "what went wrong");
}

}  // namespace
}  // namespace gyre
