// Messages to a worker from a peer that has the plan's key: the attacks that are known of other engines' workers
// (docs/security.md, "What other engines taught"). Each is refused by a sentence, or ignored, and nothing that
// another sequence has computed changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "tests/testing/worker_fixture.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::WorkerStates;

constexpr uint32_t kHuge = std::numeric_limits<uint32_t>::max();

class WorkerAttacks : public WorkerStates {
 protected:
  static constexpr size_t kVocab = 96;

  void SetUp() override {
    WorkerStates::SetUp();
    Run(1);
    // The victim has positions 0 to 2 in block 7.
    ASSERT_EQ(model_->spec().vocab, int{kVocab});
    StepBatch batch;
    batch.seqs.push_back({.seq = SeqId{1}, .row_count = 3, .blocks = {{7}}, .requests = {Asked(2)}});
    ASSERT_NE(Ask(HeaderOf(batch), Payload(batch)).payload.size(), 0u);
    before_ = VictimsNextRow();
  }
  void TearDown() override {
    EXPECT_EQ(VictimsNextRow(), before_) << "what the victim had computed has changed";
    WorkerStates::TearDown();
  }

  static RowRequest Asked(uint32_t row) { return {.first = row, .mode = RowMode::kFullLogits}; }
  // The attacker's step: two rows, in block 0.
  static StepBatch Step() {
    StepBatch batch;
    batch.seqs.push_back({.seq = SeqId{2}, .row_count = 2, .blocks = {{0}}, .requests = {Asked(1)}});
    return batch;
  }
  FrameHeader HeaderOf(const StepBatch& batch) const {
    return {.kind = FrameKind::kTokens,
            .dtype = WireType::kI32,
            .epoch = E(1),
            .step = StepId{++last_step_},
            .rows = batch.TotalRows()};
  }
  // `id`: the token of every row.
  static std::vector<std::byte> Payload(const StepBatch& batch, TokenId id = 3) {
    Encoder out;
    EncodeStepPrefix(batch, &out);
    std::vector<std::byte> payload(out.bytes().begin(), out.bytes().end());
    for (uint32_t i = 0; i < batch.TotalRows(); ++i) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&id);
      payload.insert(payload.end(), bytes, bytes + sizeof id);
    }
    return payload;
  }
  Frame Ask(const FrameHeader& header, const std::vector<std::byte>& payload) {
    const ByteSpan parts[] = {payload};
    EXPECT_TRUE(to_stage().Send(header, parts, After(kTimeout)).ok());
    auto frame = from_stage().Recv(After(kTimeout));
    EXPECT_TRUE(frame.ok()) << frame.status();
    return frame.ok() ? *std::move(frame) : Frame{};
  }
  // The sentence of the step error that a step gets; "" for an answer.
  std::string Said(const FrameHeader& header, const std::vector<std::byte>& payload) {
    const Frame frame = Ask(header, payload);
    EXPECT_EQ(frame.header.step, header.step);
    if (frame.header.kind == FrameKind::kAnswer) return "";
    EXPECT_EQ(frame.header.kind, FrameKind::kStepError);
    const auto error = DecodeStepError(frame.payload);
    return error.ok() ? error->message : Message(error.status());
  }
  std::string Said(const StepBatch& batch) { return Said(HeaderOf(batch), Payload(batch)); }
  template <typename Change>
  std::string SaidAfter(Change change) {
    StepBatch batch = Step();
    change(batch.seqs[0]);
    return Said(batch);
  }
  // The bytes of the answer to the victim's row at position 3, which reads positions 0 to 2 too.
  std::vector<std::byte> VictimsNextRow() {
    StepBatch batch;
    batch.seqs.push_back(
        {.seq = SeqId{1}, .first_position = 3, .row_count = 1, .blocks = {{7}}, .requests = {Asked(0)}});
    const Frame frame = Ask(HeaderOf(batch), Payload(batch));
    EXPECT_EQ(frame.header.kind, FrameKind::kAnswer);
    return frame.payload;
  }

  mutable uint64_t last_step_ = 0;
  std::vector<std::byte> before_;
};

// llama.cpp's GET_TENSOR, SET_TENSOR and COPY_TENSOR took pointers and sizes from the peer, GET_ROWS and SET_ROWS
// shapes that did not fit. Here a peer names blocks, positions and rows.
TEST_F(WorkerAttacks, NoNumberLeadsOutOfThePages) {
  EXPECT_EQ(SaidAfter([](SeqRows&) {}), "");
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.blocks = {{8}}; }), HasSubstr("block 8, this stage has 0-7"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.blocks = {{kHuge}}; }), HasSubstr("this stage has 0-7"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.blocks = {{0x80000000}}; }), HasSubstr("this stage has 0-7"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.first_position = 3; }), HasSubstr("1 blocks for 5 positions"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.first_position = 0x7FFFFFF0; }), HasSubstr("positions, expected"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.requests[0].first = 2; }), HasSubstr("malformed"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.requests[0].count = kHuge; }), HasSubstr("malformed"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.model = 1; }), HasSubstr("model 1"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.adapter = kHuge; }), HasSubstr("adapter"));
}

// SSM_SCAN took an index out of a tensor's contents, which no check of shapes sees. Token ids are such contents.
TEST_F(WorkerAttacks, NoContentsAreAnIndexUnchecked) {
  for (const TokenId id :
       {TokenId{kVocab}, TokenId{-1}, std::numeric_limits<TokenId>::min(), std::numeric_limits<TokenId>::max()}) {
    EXPECT_THAT(Said(HeaderOf(Step()), Payload(Step(), id)), HasSubstr("the vocabulary has 0-95")) << id;
  }
  EXPECT_THAT(SaidAfter([](SeqRows& s) {
                s.requests[0] = {.first = 1, .mode = RowMode::kTargets, .biased = {TokenId{kVocab}}};
              }),
              HasSubstr("biased id 96"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) {
                s.requests[0] = {.first = 1, .mode = RowMode::kTopK, .k = 1, .mask = {~uint64_t{0}}};
              }),
              HasSubstr("a mask of 1 words"));
}

// With per-layer embeddings, ids travel beside the hidden rows to every stage.
class PerLayerEmbeddings : public WorkerStates {
 protected:
  void SetUp() override {
    model_ = *OpenModel(side_file_.path());
    port_ = *RingPort::Open({});
    Make({});
  }
  testing::TinyModelFile side_file_{testing::TinyOptions{.arch = "gemma4", .layers = 6, .side = true}};
};

TEST_F(PerLayerEmbeddings, IdsBesideHiddenRowsAreChecked) {
  const auto dim = static_cast<size_t>(model_->spec().dim);
  ASSERT_GT(model_->spec().per_layer_width, 0);
  const Plan plan{.epoch = E(1),
                  .model_hash = model_->content_hash(),
                  .num_layers = 6,
                  .stages = MakeStages({{"before", "elsewhere:1", {0, 1}}, {"w", "", {1, 6}}})};
  control().Apply(PrepareChange({.plan = plan,
                                 .stage = 1,
                                 .block_size = 4,
                                 .memory = {.units = {8, 0, 8}},
                                 .kv_type = KvType::kF32,
                                 .sources = {}}));
  for (const uint32_t hop : {1u, 2u}) {
    const Hello hello{.epoch = plan.epoch, .hop = hop, .model_hash = plan.model_hash};
    auto link = hop == 1 ? port_->Dial("", hello, After(kTimeout)) : port_->Accept(hello, After(kTimeout));
    ASSERT_TRUE(link.ok()) << link.status();
    links_.push_back(*std::move(link));
  }
  ASSERT_EQ(Next(1), "ready");
  control().Apply({ChangeVerb::kCommit, plan.epoch});
  ASSERT_EQ(Next(1), "committed");
  StepBatch batch;
  batch.seqs.push_back({.seq = SeqId{1}, .row_count = 2, .blocks = {{0}, {}, {0, 0}}, .requests = {{.first = 1}}});
  Encoder prefix;
  EncodeStepPrefix(batch, &prefix);
  const std::vector<float> hidden(2 * dim, 0.5f);
  const auto said = [&](const std::vector<TokenId>& ids) -> std::string {
    const ByteSpan parts[] = {prefix.bytes(), std::as_bytes(std::span(hidden)), std::as_bytes(std::span(ids))};
    const FrameHeader header{
        .kind = FrameKind::kHidden, .dtype = WireType::kF32, .epoch = plan.epoch, .step = StepId{7}, .rows = 2};
    EXPECT_TRUE(to_stage().Send(header, parts, After(kTimeout)).ok());
    const auto frame = from_stage().Recv(After(kTimeout));
    if (!frame.ok()) return Message(frame.status());
    return frame->header.kind == FrameKind::kAnswer ? "" : DecodeStepError(frame->payload)->message;
  };
  EXPECT_EQ(said({3, 95}), "");
  EXPECT_THAT(said({3, 96}), HasSubstr("token id 96, the vocabulary has 0-95"));
  EXPECT_THAT(said({-1, 3}), HasSubstr("token id -1"));
  EXPECT_THAT(said({3}), HasSubstr("2 rows"));
  EXPECT_THAT(said({}), HasSubstr("2 rows"));
  EXPECT_EQ(said({3, 95}), "");
}

// Buffers that are null or empty, and a graph of no nodes.
TEST_F(WorkerAttacks, NothingIsMissedWhereNothingIs) {
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.blocks = {{}}; }), HasSubstr("0 blocks for 2 positions"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.blocks.clear(); }), HasSubstr("malformed"));
  StepBatch none;
  EXPECT_THAT(Said(none), HasSubstr("no sequences"));
  EXPECT_NE(Said(HeaderOf(Step()), {}), "");
  EXPECT_THAT(Said(HeaderOf(Step()), Payload(none)), HasSubstr("no sequences"));
  std::vector<std::byte> without_rows = Payload(Step());
  without_rows.resize(without_rows.size() - 2 * sizeof(TokenId));
  EXPECT_THAT(Said(HeaderOf(Step()), without_rows), HasSubstr("expected 2 rows"));
}

// Sizes whose product or sum overflows, zero extents that underflow, counts beyond the message.
TEST_F(WorkerAttacks, NoSizeOverflows) {
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.first_position = 0x7FFFFFFF; }), HasSubstr("malformed"));
  EXPECT_THAT(SaidAfter([](SeqRows& s) { s.first_position = kHuge; }), HasSubstr("malformed"));
  // The numbers stand in the payload at places that the layout of docs/wire.md gives; each becomes the largest.
  const std::vector<std::byte> payload = Payload(Step());
  const size_t descriptor = 4;
  for (const auto& [name, at] : {std::pair{"length of the descriptor", size_t{0}},
                                 {"sequences", descriptor},
                                 {"rows", descriptor + 29},
                                 {"KV groups", descriptor + 33},
                                 {"blocks", descriptor + 37},
                                 {"requests", descriptor + 45},
                                 {"biased ids", descriptor + 66},
                                 {"words of the mask", descriptor + 70}}) {
    for (const uint32_t value : {kHuge, kHuge - 2, 0x80000000u, 0x40000000u, 0x20000001u}) {
      std::vector<std::byte> bad = payload;
      std::memcpy(bad.data() + at, &value, sizeof value);
      EXPECT_NE(Said(HeaderOf(Step()), bad), "") << name << " " << value;
    }
  }
  // No rows at all, in a descriptor that is whole.
  std::vector<std::byte> bad = payload;
  std::memset(bad.data() + descriptor + 29, 0, 4);
  EXPECT_THAT(Said(HeaderOf(Step()), bad), HasSubstr("malformed"));
}

// A type that a table is then read with (SET_TENSOR), an operation that is a function pointer (CUSTOM): here both are
// numbers of closed lists.
TEST_F(WorkerAttacks, NoUnknownTypeOrOperationIsLookedUp) {
  FrameHeader header = HeaderOf(Step());
  for (const int type : {0, 2, 3, 4, 5, 9, 255}) {
    header.dtype = static_cast<WireType>(type);
    EXPECT_THAT(Said(header, Payload(Step())), HasSubstr("this plan's are")) << type;
  }
  header.dtype = WireType::kI32;
  header.kind = FrameKind::kHidden;
  EXPECT_THAT(Said(header, Payload(Step())), HasSubstr("a frame of kind 3, this stage takes 2"));
  const std::vector<std::byte> payload = Payload(Step());
  const size_t row_class = 4 + 24, mode = 4 + 57;
  for (const int value : {0, 6, 9, 255}) {
    for (const size_t at : {row_class, mode}) {
      if (at == row_class && value == 0) continue;
      std::vector<std::byte> bad = payload;
      bad[at] = static_cast<std::byte>(value);
      EXPECT_THAT(Said(HeaderOf(Step()), bad), HasSubstr("malformed")) << at << " " << value;
    }
  }
}

// A graph that was kept, run again after its buffers were freed.
TEST_F(WorkerAttacks, WhatIsGoneIsNotUsed) {
  const auto asked = [this](const FullLogitsRequest& question, uint64_t number) {
    Encoder out;
    EncodeFullLogitsRequest(question, &out);
    const ByteSpan parts[] = {out.bytes()};
    EXPECT_TRUE(
        to_stage().Send({.kind = FrameKind::kFullLogitsRequest, .epoch = E(number)}, parts, After(kTimeout)).ok());
  };
  const auto answered = [this] {
    const auto frame = from_stage().Recv(After(kTimeout));
    EXPECT_TRUE(frame.ok()) << frame.status();
    const auto answer = DecodeLogitsAnswer(frame->payload);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer->logits.size();
  };
  // Rows that nobody computed, or asked for.
  for (const uint32_t position : {0u, 1u, 5u, kHuge}) {
    asked({.seq = SeqId{1}, .position = position}, 1);
    EXPECT_EQ(answered(), 0u) << position;
  }
  asked({.seq = SeqId{99}, .position = 2}, 1);
  EXPECT_EQ(answered(), 0u);
  // A question that is no question, and frames of plans that have gone or never were, are dropped.
  const std::vector<std::byte> cut(3);
  const ByteSpan parts[] = {cut};
  ASSERT_TRUE(to_stage().Send({.kind = FrameKind::kFullLogitsRequest, .epoch = E(1)}, parts, After(kTimeout)).ok());
  for (const uint64_t number : {uint64_t{0}, uint64_t{2}, ~uint64_t{0}}) {
    asked({.seq = SeqId{1}, .position = 2}, number);
    FrameHeader header = HeaderOf(Step());
    header.epoch = E(number);
    const std::vector<std::byte> payload = Payload(Step());
    const ByteSpan step[] = {payload};
    ASSERT_TRUE(to_stage().Send(header, step, After(kTimeout)).ok());
  }
  EXPECT_EQ(Said(Step()), "") << "the next frame that comes back is the answer to this one";
}

// Bytes that are changed at random: whatever a decoder makes of them, the worker goes on and the victim has what it
// had.
TEST_F(WorkerAttacks, ChangedStepsAreRefusedOrComputeTheirOwnRows) {
  std::mt19937 random(1);
  const std::vector<std::byte> payload = Payload(Step());
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bad = payload;
    for (uint32_t flips = 1 + random() % 3; flips > 0; --flips) {
      bad[random() % bad.size()] ^= static_cast<std::byte>(1 << (random() % 8));
    }
    if (random() % 4 == 0) bad.resize(random() % bad.size());
    // A peer with the plan's key may write into any page: what it can't is leave them. The victim's is restored.
    refused += !Said(HeaderOf(Step()), bad).empty();
  }
  EXPECT_GT(refused, 1000);
  StepBatch batch;
  batch.seqs.push_back({.seq = SeqId{1}, .row_count = 3, .blocks = {{7}}});
  EXPECT_EQ(Said(batch), "");
}

}  // namespace
}  // namespace gyre
