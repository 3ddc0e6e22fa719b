// Slots of recurrent state on a stage: rows are applied once, where the state is, and snapshots are what they were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/one_stage.h"
#include "tests/testing/tiny_hybrid.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::OneStage;

const std::vector<RowRequest> kFull = {{.first = 0, .count = 1, .mode = RowMode::kFullLogits}};

class Slots : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto model = OpenModel(file_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    stage_ = std::make_unique<OneStage>(model_, DetectIsa());
  }
  static std::vector<TokenId> Ids(uint32_t first, uint32_t n) {
    std::vector<TokenId> ids;
    for (uint32_t p = first; p < first + n; ++p) ids.push_back(static_cast<TokenId>((p * 7 + 3) % 96));
    return ids;
  }
  static OneStage::Part Rows(uint64_t seq, uint32_t first, uint32_t n, SlotTable slots = {}) {
    return {seq, first, RowClass::kPrompt, Ids(first, n), {}, slots};
  }
  static OneStage::Part Asked(uint64_t seq, uint32_t position, SlotTable slots = {}) {
    return {seq, position, RowClass::kPrompt, Ids(position, 1), kFull, slots};
  }
  std::string Refusal(const OneStage::Part& rows) {
    StepAnswer answer;
    const Status status = stage_->Try({rows}, &answer);
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }
  const PagePool& pool() const {
    for (size_t i = 0;; ++i) {
      const auto& pages = stage_->layer(i).pages;
      if (pages != nullptr && pages->has_slots()) return *pages;
    }
  }

  testing::TinyModelFile file_{testing::BuildTinyHybrid(GetParam())};
  std::shared_ptr<const Model> model_;
  std::unique_ptr<OneStage> stage_;
};

TEST_P(Slots, RowsAreAppliedOnceAndNoneIsLeftOut) {
  stage_->Run({Rows(0, 0, 10)});
  EXPECT_THAT(Refusal(Rows(0, 8, 4)), HasSubstr("rows from position 8 on"));
  EXPECT_THAT(Refusal(Rows(0, 11, 2)), HasSubstr("at position 10 of sequence 0"));
  EXPECT_THAT(Refusal(Rows(1, 10, 2, {.slot = 0})), HasSubstr("sequence 1"));
  // The refused rows changed nothing.
  const auto goes_on = stage_->Run({Asked(0, 10)});
  const auto whole = [&] {
    OneStage other(model_, DetectIsa());
    other.Run({Rows(0, 0, 10)});
    return other.Run({Asked(0, 10)});
  }();
  EXPECT_EQ(goes_on, whole);
  // Position 0 begins anew, in a slot that holds another state.
  stage_->Run({Rows(1, 0, 10, {.slot = 0})});
  EXPECT_EQ(stage_->Run({Asked(1, 10, {.slot = 0})}), whole);
}

// Rows that were on their way when their sequence was preempted belong to a state that is gone.
TEST_P(Slots, RowsOfAnotherIncarnationAreRefused) {
  stage_->Run({Rows(0, 0, 10)});
  OneStage::Part rows = Rows(0, 10, 2);
  rows.incarnation = 1;
  EXPECT_THAT(Refusal(rows), HasSubstr("incarnation 1: rows from position 10 on"));
  OneStage::Part again = Rows(0, 0, 10);
  again.incarnation = 1;
  stage_->Run({again});
  EXPECT_THAT(Refusal(Rows(0, 10, 2)), HasSubstr("at position 10 of sequence 0, incarnation 1"));
  stage_->Run({rows});
}

// A step that ends in the middle has changed the states of some layers: nothing goes on from there.
TEST_P(Slots, AStateIsOfNoUseAfterAStepThatFailed) {
  const auto device = std::make_shared<testing::FarDevice>(MakeCpuDevice(Isa::kRef, 1));
  stage_ = std::make_unique<OneStage>(model_, device);
  stage_->Run({Rows(0, 0, 10)});
  device->FailNextOp();
  StepAnswer answer;
  EXPECT_THROW(static_cast<void>(stage_->Try({Rows(0, 10, 2)}, &answer)), DeviceFailed);
  EXPECT_THAT(Refusal(Rows(0, 10, 2)), HasSubstr("at position none of sequence 0"));
  stage_->Run({Rows(0, 0, 10)});
  stage_->Run({Rows(0, 10, 2)});
}

TEST_P(Slots, ASnapshotIsTheStateOfItsPosition) {
  stage_->Run({Rows(0, 0, 16, {.slot = 0, .copy = 2, .copy_number = 77})});
  const auto expected = stage_->Run({Asked(0, 16)});
  EXPECT_THAT(Refusal(Asked(0, 16, {.slot = 2})), HasSubstr("snapshot 77")) << "no sequence changes a snapshot";
  stage_->Run({Rows(0, 17, 5)});
  EXPECT_EQ(pool().Header(2).position, 16u);
  EXPECT_EQ(pool().Header(2).snapshot, 77u);
  // A move brings it along, and a replica gets it, but no state of a running sequence.
  EXPECT_EQ(pool().written(2), 1u);
  EXPECT_EQ(pool().full(2), 1u);
  EXPECT_EQ(pool().full(0), 0u);
  // Sequence 1 has the pages of the first 16 positions of its own, and the state of sequence 0.
  stage_->Run({Rows(1, 0, 16, {.slot = 3})});
  EXPECT_THAT(Refusal(Asked(1, 16, {.slot = 1, .begin = 2, .begin_number = 78})), HasSubstr("snapshot 77"));
  EXPECT_THAT(Refusal(Asked(1, 16, {.slot = 1, .begin = 0, .begin_number = 77})), HasSubstr("no snapshot"));
  EXPECT_THAT(Refusal(Asked(1, 17, {.slot = 1, .begin = 2, .begin_number = 77})), HasSubstr("at position 16"));
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(stage_->Run({Asked(1, 16, {.slot = 1, .begin = 2, .begin_number = 77})}), expected);
}

// The rows behind a mark may turn out to be void.
TEST_P(Slots, AMarkIsTheStateAfterItsRow) {
  stage_->Run({Rows(0, 0, 6)});
  const auto expected = stage_->Run({Asked(0, 6)});
  stage_->Run({Rows(1, 0, 4, {.slot = 1})});
  stage_->Run({Rows(1, 4, 4, {.slot = 1, .marks = {{1, 2}, {2, 3}}})});
  EXPECT_EQ(pool().Header(2).position, 6u);
  EXPECT_EQ(pool().Header(3).position, 7u);
  EXPECT_EQ(pool().full(2), 0u) << "a mark is no snapshot";
  EXPECT_THAT(Refusal(Asked(1, 6, {.slot = 3})), HasSubstr("at position 7 of sequence 1"));
  EXPECT_THAT(Refusal(Asked(1, 6, {.slot = 1})), HasSubstr("at position 8 of sequence 1"));
  EXPECT_EQ(stage_->Run({Asked(1, 6, {.slot = 2})}), expected);
  EXPECT_THAT(Refusal(Rows(1, 7, 2, {.slot = 2, .marks = {{1, 3}}})), HasSubstr("a mark after row 1 of 2"));
  EXPECT_THAT(Refusal(Rows(1, 7, 3, {.slot = 2, .marks = {{1, 3}, {0, 1}}})), HasSubstr("a mark after row 0"));
  EXPECT_THAT(Refusal(Rows(1, 7, 2, {.slot = 2, .marks = {{0, 2}}})), HasSubstr("written twice"));
  EXPECT_THAT(Refusal(Rows(1, 7, 2, {.slot = 2, .marks = {{0, testing::kSlotCount}}})), HasSubstr("a mark in slot"));
  EXPECT_THAT(Refusal(Rows(1, 7, 2, {.slot = 2, .copy = 0, .copy_number = 5, .marks = {{0, 3}}})),
              HasSubstr("may be void"));
}

TEST_P(Slots, TablesThatMakeNoSenseAreRefused) {
  stage_->Run({Rows(0, 0, 4)});
  EXPECT_THAT(Refusal(Rows(0, 4, 1, {.slot = testing::kSlotCount})), HasSubstr("this stage has 0-3"));
  EXPECT_THAT(Refusal(Rows(0, 4, 1, {.slot = 0, .copy = 0, .copy_number = 1})), HasSubstr("written twice"));
  EXPECT_THAT(Refusal(Rows(1, 0, 1, {.slot = 1, .begin = 2, .begin_number = 1})), HasSubstr("position 0"));
  StepAnswer answer;
  EXPECT_THAT(std::string(stage_->Try({Rows(0, 4, 1), Rows(1, 0, 1, {.slot = 0})}, &answer).message()),
              HasSubstr("written twice"));
}

INSTANTIATE_TEST_SUITE_P(Families, Slots, ::testing::Values("qwen35", "lfm2", "nemotron_h"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gyre
