// The ends of a worker's threads, and their behaviour when something cannot be done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <new>
#include <stdexcept>

#include "tests/testing/worker_fixture.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class WorkerLife : public testing::WorkerStates {
 protected:
  static StepBatch FullLogits(uint32_t rows) {
    StepBatch batch;
    batch.seqs.push_back({.seq = SeqId{1}, .row_count = rows, .blocks = {{0, 1, 2}}});
    batch.seqs[0].requests.push_back({.first = 0, .count = rows, .mode = RowMode::kFullLogits});
    return batch;
  }
  // The sentence of a step error; "" for an answer.
  std::string Result() {
    const auto frame = from_stage().Recv(After(kTimeout));
    if (!frame.ok()) return "no frame: " + Message(frame.status());
    return frame->header.kind == FrameKind::kAnswer ? "" : DecodeStepError(frame->payload)->message;
  }
  WorkerOptions WithFatal() {
    return {.on_fatal = [this](const Status& why) { fatal_.set_value(why); }};
  }
  std::string LastWords() {
    auto words = fatal_.get_future();
    return words.wait_for(kTimeout) == std::future_status::ready ? Message(words.get()) : "none";
  }
  std::promise<Status> fatal_;
};

// Sent, it would break the link, and again after each repair.
TEST_F(WorkerLife, AnAnswerThatFitsNoFrameIsAStepError) {
  const uint64_t three_rows = MaxAnswerBytes(FullLogits(3), static_cast<size_t>(model_->spec().vocab), 1);
  Make({.max_payload = three_rows});
  Run(1);
  SendStep(1, 1, FullLogits(3));
  EXPECT_EQ(Result(), "");
  SendStep(1, 2, FullLogits(4));
  EXPECT_THAT(Result(), HasSubstr("the answer to a step of 4 rows has up to"));
  SendStep(1, 3, FullLogits(4));
  EXPECT_THAT(Result(), HasSubstr("ask for the logits of fewer rows at a time (--max-rows)"));
  SendStep(1, 4, FullLogits(1));
  EXPECT_EQ(Result(), "") << "the link goes on";
  EXPECT_EQ(worker_->stats().step_errors, 2u);
}

// The coordinator learns from it how many steps the ring needs.
TEST_F(WorkerLife, AStepSaysWhatItCostAndWhetherItWaited) {
  Make({});
  Run(1);
  const auto header = [this] { return from_stage().Recv(After(kTimeout))->header; };
  std::this_thread::sleep_for(milliseconds(20));  // the stage waits
  SendStep(1, 1, FullLogits(4));
  const FrameHeader first = header();
  EXPECT_GT(first.computed_us, 0u);
  EXPECT_EQ(first.slowest_us, first.computed_us);
  EXPECT_FALSE(first.queued);
  // One that other stages have computed for a second, and one that comes while the stage is busy.
  HoldStageThread();
  SendStep(1, 2, FullLogits(4), 1'000'000);
  SendStep(1, 3, FullLogits(4), UINT32_MAX);
  std::this_thread::sleep_for(milliseconds(20));
  release_ = true;
  const FrameHeader second = header(), third = header();
  EXPECT_GT(second.computed_us, 1'000'000u);
  EXPECT_EQ(second.slowest_us, 1'000'000u);
  EXPECT_TRUE(second.queued && third.queued);
  EXPECT_EQ(third.computed_us, UINT32_MAX) << "no number begins anew";
}

TEST_F(WorkerLife, WithoutMemoryAStepFailsAndTheStageGoesOn) {
  Make(WithFatal());
  Run(1);
  worker_->SetFaultHook([]() -> Status { throw std::bad_alloc(); });
  SendStep(1, 1, FullLogits(1));
  EXPECT_THAT(Result(), HasSubstr("no memory"));
  worker_->SetFaultHook({});
  SendStep(1, 2, FullLogits(1));
  EXPECT_EQ(Result(), "");
}

TEST_F(WorkerLife, AStageThreadThatEndsSaysItsLastWords) {
  Make(WithFatal());
  Run(1);
  worker_->SetFaultHook([]() -> Status { throw std::logic_error("a bug"); });
  SendStep(1, 1, FullLogits(1));
  EXPECT_EQ(LastWords(), "w: the stage thread ended by an exception: a bug");
  EXPECT_TRUE(absl::IsUnavailable(from_stage().Recv(After(kTimeout)).status())) << "the ring sees it, too";
}

TEST_F(WorkerLife, ALoaderThreadThatEndsSaysItsLastWords) {
  Make(WithFatal());
  control().SetEventSink([](const StageEvent&) { throw std::logic_error("another bug"); });
  Prepare(1, 0, false);
  EXPECT_EQ(LastWords(), "w: the loader thread ended by an exception: another bug");
}

using WorkerDeathTest = WorkerLife;

// Nobody who would go on hearing its heartbeats may take it for a worker.
TEST_F(WorkerDeathTest, WithNobodyToTellTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Run(1);
        worker_->SetFaultHook([]() -> Status { throw std::logic_error("a bug"); });
        SendStep(1, 1, FullLogits(1));
        std::this_thread::sleep_for(kTimeout);
      },
      ::testing::ExitedWithCode(1), "w: the stage thread ended by an exception: a bug");
}

// The next stage takes nothing in and is given up by the coordinator: the stage's thread hears of the new plan.
TEST_F(WorkerLife, ACommitEndsASendThatWaits) {
  Make({.queued_bytes = 1});
  Run(1);
  for (uint64_t step = 1; step <= 259; ++step)
    SendStep(1, step, FullLogits(1));  // 256 answers lie in the link, one is queued
  for (const Deadline end = After(kTimeout); worker_->stats().steps < 258 && Clock::now() < end;)
    std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_EQ(worker_->stats().steps, 258u) << "its answer waits";
  Prepare(2);
  ASSERT_EQ(Next(2), "ready");
  control().Apply({ChangeVerb::kCommit, E(2)});
  EXPECT_EQ(Next(2), "committed");
  SendStep(2, 1, FullLogits(1));
  EXPECT_EQ(Result(), "") << "the new ring's links are whole";
}

// It comes while the stage still computes: the Send begins when nobody takes its frame any more.
TEST_F(WorkerLife, ACommitEndsASendThatBeginsAfterIt) {
  Make({.queued_bytes = 1});
  Run(1);
  std::atomic<bool> computes{false}, goes_on{false};
  for (uint64_t step = 1; step <= 257; ++step) SendStep(1, step, FullLogits(1));  // their answers fill link and queue
  for (const Deadline end = After(kTimeout); worker_->stats().steps < 257 && Clock::now() < end;)
    std::this_thread::sleep_for(milliseconds(1));
  worker_->SetFaultHook([&]() -> Status {
    computes = true;
    while (!goes_on) std::this_thread::sleep_for(milliseconds(1));
    return absl::OkStatus();
  });
  SendStep(1, 258, FullLogits(1));
  while (!computes) std::this_thread::sleep_for(milliseconds(1));
  Prepare(2);
  ASSERT_EQ(Next(2), "ready");
  control().Apply({ChangeVerb::kCommit, E(2)});
  goes_on = true;
  EXPECT_EQ(Next(2), "committed");
  SendStep(2, 1, FullLogits(1));
  EXPECT_EQ(Result(), "");
}

// A call waits behind the step under way, and then behind another job: only that one's time is silence.
TEST_F(WorkerLife, ALongStepIsNoSilence) {
  Make({});
  Run(1);
  std::atomic<bool> computes{false}, goes_on{false};
  worker_->SetFaultHook([&]() -> Status {
    computes = true;
    while (!goes_on) std::this_thread::sleep_for(milliseconds(1));
    return absl::OkStatus();
  });
  SendStep(1, 1, FullLogits(1));
  while (!computes) std::this_thread::sleep_for(milliseconds(1));
  worker_->OnStageThread([this] {
    held_ = true;
    while (!release_) std::this_thread::sleep_for(milliseconds(1));
  });
  EXPECT_EQ(worker_->TakeLoad().unanswered_us, 0u);
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_EQ(worker_->TakeLoad().unanswered_us, 0u) << "it computes";
  const Deadline free = Clock::now();
  goes_on = true;
  while (!held_) std::this_thread::sleep_for(milliseconds(1));
  const uint64_t silent = worker_->TakeLoad().unanswered_us;
  const auto since = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - free).count();
  EXPECT_LE(silent, static_cast<uint64_t>(since));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_GE(worker_->TakeLoad().unanswered_us, 40'000u);
  release_ = true;
  EXPECT_EQ(Result(), "");
}

// The job that wakes the stage's thread for its end may run among others, between two steps.
TEST_F(WorkerLife, AStopAmongOtherJobsEndsTheStage) {
  Make({.export_slice = seconds(30)});
  Run(1);
  HoldStageThread();
  std::thread stops([this] { worker_->Stop(); });
  std::this_thread::sleep_for(milliseconds(50));
  release_ = true;
  stops.join();
}

TEST_F(WorkerLife, AStopEndsALoaderThatWaitsForItsNeighbours) {
  Prepare(1, 0, false);
  std::this_thread::sleep_for(milliseconds(50));
  const Deadline asked = Clock::now();
  worker_->Stop();
  EXPECT_LT(Clock::now() - asked, kTimeout);
}

}  // namespace
}  // namespace gyre
