// The restore of a lost plan's pages at the worker that takes its layers: nothing is copied before the list is there,
// it takes a short time, and what a later step wrote does not count.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/inbox.h"
#include "tests/testing/worker_fixture.h"

namespace gyre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WorkerRestore : public WorkerStates {
 protected:
  PrepareRequest Restoring(uint64_t number, uint64_t lost, std::vector<LayerSource> sources) {
    return {.plan = PlanOf(number),
            .stage = 0,
            .block_size = 4,
            .memory = {.units = {8}},
            .kv_type = KvType::kF32,
            .sources = std::move(sources),
            .restores = lost};
  }
  // Prepares the plan and asks for the list; returns what is missing of it.
  std::vector<BlockId> Missing(const PrepareRequest& request, const UnitList& list) {
    const uint64_t number = request.plan.epoch.number;
    control().Apply(PrepareChange(request));
    WireEnds(number);
    EXPECT_EQ(Next(number), "ready");
    control().Apply({.verb = ChangeVerb::kMove, .epoch = E(number), .prepare = {}, .units = list});
    for (;;) {
      const auto event = events_.Pop(After(kTimeout));
      if (!event) return {99};
      if (const StageDone* moved = event->AnswerTo(ChangeVerb::kMove)) return moved->missing;
    }
  }
  // One row of one sequence, the position's block is `block`.
  static StepBatch Row(uint32_t position, std::vector<BlockId> blocks) {
    StepBatch batch;
    batch.seqs.push_back({.seq = SeqId{1},
                          .incarnation = 1,
                          .first_position = position,
                          .row_count = 1,
                          .blocks = {std::move(blocks)},
                          .requests = {{.first = 0}}});
    return batch;
  }
  void Compute(uint64_t number, uint64_t step, BlockId block) {
    SendStep(number, step, Row(0, {block}));
    ASSERT_TRUE(from_stage().Recv(After(kTimeout)).ok());
  }
};

TEST_F(WorkerRestore, ASourceThatSaysNothingCostsAShortTime) {
  Make({.restore_silence = milliseconds(300), .restore_limit = seconds(2)});
  std::vector<std::unique_ptr<Link>> links;
  Mutex mutex;
  port_->SetBulkHandler("src", [&](std::unique_ptr<Link> link) {
    MutexLock lock(&mutex);
    links.push_back(std::move(link));
  });
  const Deadline begin = Clock::now();
  const auto request =
      Restoring(1, 7, {{.layers = {0, 5}, .worker = "src", .address = port_->address(), .replica = 7}});
  EXPECT_THAT(Missing(request, {3, 1}), ElementsAre(1, 3));
  EXPECT_LT(Clock::now() - begin, seconds(10));
  control().Apply({ChangeVerb::kCommit, E(1)});
  EXPECT_EQ(Next(1), "committed") << "the plan goes on without the pages";
}

TEST_F(WorkerRestore, ASourceThatCantBeReachedIsNoFaultOfThePlan) {
  const auto request = Restoring(1, 7, {{.layers = {0, 5}, .worker = "src", .address = "127.0.0.1:1", .replica = 7}});
  EXPECT_THAT(Missing(request, {3, 1}), ElementsAre(1, 3));
  control().Apply({ChangeVerb::kCommit, E(1)});
  EXPECT_EQ(Next(1), "committed");
}

TEST_F(WorkerRestore, PagesThatALaterStepWroteAreMissing) {
  Run(1);
  Compute(1, 10, 3);
  Compute(1, 12, 5);
  UnitList list({3, 5, 6});
  list.steps = {10, 11, 20};
  EXPECT_THAT(Missing(Restoring(2, 1, {}), list), ElementsAre(5, 6)) << "5 was written in step 12, 6 never";
  control().Apply({ChangeVerb::kCommit, E(2)});
  EXPECT_EQ(Next(2), "committed");
  EXPECT_EQ(worker_->last_step(), 12u);
}

TEST_F(WorkerRestore, NoStepOfTheLostRingIsComputedAfterItsPagesWereLookedAt) {
  Run(1);
  Compute(1, 10, 3);
  UnitList list({3});
  list.steps = {10};
  EXPECT_THAT(Missing(Restoring(2, 1, {}), list), IsEmpty());
  // The stage before may have it still in its link.
  Encoder prefix;
  EncodeStepPrefix(Row(0, {3}), &prefix);
  const std::vector<TokenId> ids(1, 3);
  const ByteSpan parts[] = {prefix.bytes(), std::as_bytes(std::span(ids))};
  const FrameHeader header{
      .kind = FrameKind::kTokens, .dtype = WireType::kI32, .epoch = E(1), .step = StepId{11}, .rows = 1};
  if (links_[0]->Send(header, parts, After(kTimeout)).ok()) {
    for (int i = 0; i < 60 && worker_->last_step() == 10; ++i) std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(worker_->last_step(), 10u);
}

// Another coordinator may count its steps from 1: what they write is later all the same.
TEST_F(WorkerRestore, StampsRiseWithEachStep) {
  Run(1);
  Compute(1, 10, 3);
  Compute(1, 2, 4);
  EXPECT_EQ(worker_->last_step(), 11u);
  UnitList list({3, 4});
  list.steps = {10, 10};
  EXPECT_THAT(Missing(Restoring(2, 1, {}), list), ElementsAre(4));
}

}  // namespace
}  // namespace gyre::testing
