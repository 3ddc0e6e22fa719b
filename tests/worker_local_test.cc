// Local workers between their links: order, errors in place, epochs, plan changes under load, ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>

#include "tests/testing/worker_rig.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::LogitRows;
using testing::MakeIds;
using testing::MakeRows;
using testing::MakeSpec;
using testing::MakeTable;
using testing::MemoryModel;
using testing::Soon;
using testing::StageChain;
using testing::WorkerRig;

class LocalWorkerTest : public ::testing::Test {
 protected:
  // Logits after each of ids_, by stages without threads.
  LogitRows Expected() const {
    StageChain chain(model_, {});
    return testing::ChainLogits(chain, ids_, ids_.size(), MakeTable(chain.options().kv, 200));
  }
  const std::shared_ptr<MemoryModel> model_ = std::make_shared<MemoryModel>(MakeSpec(), 51);
  const std::vector<TokenId> ids_ = MakeIds(30, model_->spec().vocab, 12);
};

TEST_F(LocalWorkerTest, ARingGivesTheBitsOfTheStagesAlone) {
  const LogitRows expected = Expected();
  for (const int stages : {1, 2, 3}) {
    WorkerRig rig(model_, {.stages = stages});
    ASSERT_TRUE(rig.Adopt(1).ok());
    for (uint32_t i = 0; i < ids_.size(); ++i) ASSERT_TRUE(rig.SendRows(1, i, i, {ids_[i]}).ok());
    for (uint32_t i = 0; i < ids_.size(); ++i) {
      const Frame frame = rig.Recv();
      EXPECT_EQ(frame.header.step, StepId{i});
      EXPECT_EQ(frame.header.epoch, (Epoch{.term = 7, .number = 1}));
      EXPECT_EQ(WorkerRig::Logits(frame), LogitRows{expected[i]});
    }
    for (int w = 0; w < stages; ++w) {
      LocalWorker& worker = rig.worker(static_cast<size_t>(w));
      EXPECT_EQ(worker.stats().steps, ids_.size());
      EXPECT_GT(worker.busy_time().count(), 0);
      EXPECT_GT(worker.weight_bytes(), 0u);
      const double share = worker.TakeBusyShare();
      EXPECT_GT(share, 0);
      EXPECT_LE(share, 1);
    }
  }
}

TEST_F(LocalWorkerTest, AnErrorStandsInThePlaceOfItsStep) {
  WorkerRig rig(model_, {.stages = 3});
  ASSERT_TRUE(rig.Adopt(1).ok());
  rig.worker(1).SetFaultHook(
      [n = std::make_shared<int>(0)] { return (*n)++ == 4 ? Internal("planted fault") : absl::OkStatus(); });
  for (uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(rig.SendRows(1, i, 0, ids_).ok());
  const LogitRows expected = Expected();
  for (uint32_t i = 0; i < 10; ++i) {
    const Frame frame = rig.Recv();
    EXPECT_EQ(frame.header.step, StepId{i});
    if (i != 4) {
      EXPECT_EQ(WorkerRig::Logits(frame), expected);
      continue;
    }
    ASSERT_EQ(frame.header.kind, FrameKind::kStepError);
    const StepError error = DecodeStepError(frame.payload).value();
    EXPECT_EQ(error, (StepError{.stage = 1, .message = "planted fault"}));
  }
  EXPECT_EQ(rig.worker(0).stats().steps, 10u);
  EXPECT_EQ(rig.worker(1).stats().step_errors, 1u);
  EXPECT_EQ(rig.worker(2).stats().steps, 9u);
}

TEST_F(LocalWorkerTest, AHookThatThrowsIsAStepErrorToo) {
  WorkerRig rig(model_);
  ASSERT_TRUE(rig.Adopt(1).ok());
  rig.worker(0).SetFaultHook([]() -> Status { throw std::bad_alloc(); });
  ASSERT_TRUE(rig.SendRows(1, 1, 0, ids_).ok());
  EXPECT_EQ(rig.Recv().header.kind, FrameKind::kStepError);
  rig.worker(0).SetFaultHook([]() -> Status { throw std::runtime_error("a cold kitchen"); });
  ASSERT_TRUE(rig.SendRows(1, 2, 0, ids_).ok());
  EXPECT_THAT(DecodeStepError(rig.Recv().payload).value().message, HasSubstr("cold kitchen"));
  rig.worker(0).SetFaultHook({});
  ASSERT_TRUE(rig.SendRows(1, 3, 0, ids_).ok());
  EXPECT_EQ(WorkerRig::Logits(rig.Recv()), Expected());
}

TEST_F(LocalWorkerTest, QuestionsAndForeignAnswersPassInOrder) {
  WorkerRig rig(model_, {.stages = 2});
  ASSERT_TRUE(rig.Adopt(1).ok());
  StepBatch batch;
  batch.seqs.push_back(MakeRows(1, 0, 30, MakeTable({.block_size = 4, .num_blocks = 64}, 30), 1, RowMode::kTopK));
  batch.seqs[0].requests[0].k = 3;
  const LogitsQuestion question{.seq = SeqId{1}, .incarnation = 0, .model = 0, .position = 17};
  Encoder asked, gone, error;
  EncodeLogitsQuestion(question, &asked);
  EncodeLogitsQuestion({.seq = SeqId{2}}, &gone);
  EncodeStepError({.stage = 9, .message = "made earlier"}, &error);
  ASSERT_TRUE(rig.SendStep(1, 1, batch, ids_).ok());
  ASSERT_TRUE(rig.SendBytes(WorkerRig::Header(FrameKind::kLogitsQuestion, 1, 0), asked.bytes()).ok());
  ASSERT_TRUE(rig.SendBytes(WorkerRig::Header(FrameKind::kStepError, 1, 2), error.bytes()).ok());
  ASSERT_TRUE(rig.SendBytes(WorkerRig::Header(FrameKind::kLogitsQuestion, 1, 0), gone.bytes()).ok());
  ASSERT_TRUE(rig.SendRows(1, 3, 0, ids_).ok());
  EXPECT_EQ(rig.Recv().header.kind, FrameKind::kAnswer);
  const LogitsAnswer answer = DecodeLogitsAnswer(rig.Recv().payload).value();
  EXPECT_EQ(answer.question, question);
  EXPECT_EQ(answer.logits, Expected()[17]);
  const Frame passed = rig.Recv();
  EXPECT_EQ(passed.header.kind, FrameKind::kStepError);
  EXPECT_EQ(passed.header.step, StepId{2});
  EXPECT_EQ(DecodeStepError(passed.payload).value().message, "made earlier");
  EXPECT_TRUE(DecodeLogitsAnswer(rig.Recv().payload).value().logits.empty());
  EXPECT_EQ(WorkerRig::Logits(rig.Recv()), Expected());
}

TEST_F(LocalWorkerTest, OldFramesAreDroppedAndNewerOnesWaitForTheCommit) {
  WorkerRig rig(model_);
  ASSERT_TRUE(rig.SendRows(1, 1, 0, ids_).ok());  // nothing runs and nothing is prepared
  while (rig.worker(0).stats().dropped_frames < 1) std::this_thread::yield();
  ASSERT_TRUE(rig.Adopt(1).ok());
  rig.Prepare(3);
  ASSERT_TRUE(rig.Expect<StageReady>().ok());
  ASSERT_TRUE(rig.SendRows(3, 30, 0, ids_).ok());     // early
  ASSERT_TRUE(rig.SendRows(3, 31, 0, ids_, 6).ok());  // other terms
  ASSERT_TRUE(rig.SendRows(3, 32, 0, ids_, 8).ok());
  ASSERT_TRUE(rig.SendRows(4, 40, 0, ids_).ok());  // never comes to be
  ASSERT_TRUE(rig.SendRows(3, 33, 0, ids_).ok());
  ASSERT_TRUE(rig.SendRows(1, 10, 0, ids_).ok());
  EXPECT_EQ(rig.Recv().header.step, StepId{10}) << "the running plan goes on meanwhile";
  EXPECT_EQ(rig.worker(0).stats().dropped_frames, 3u);
  EXPECT_EQ(rig.worker(0).stats().held_frames, 3u);
  rig.Commit(3);
  ASSERT_TRUE(rig.Expect<StageCommitted>().ok());
  ASSERT_TRUE(rig.SendRows(1, 11, 0, ids_).ok());
  ASSERT_TRUE(rig.SendRows(3, 34, 0, ids_).ok());
  for (const uint64_t step : {30u, 33u, 34u}) {
    const Frame frame = rig.Recv();
    EXPECT_EQ(frame.header.step, StepId{step});
    EXPECT_EQ(WorkerRig::Logits(frame), Expected());
  }
  EXPECT_EQ(rig.worker(0).stats().dropped_frames, 4u);
  ASSERT_TRUE(rig.Adopt(5).ok());
  ASSERT_TRUE(rig.SendRows(5, 50, 0, ids_).ok());
  EXPECT_EQ(rig.Recv().header.step, StepId{50});
  EXPECT_EQ(rig.worker(0).stats().dropped_frames, 5u) << "the frame that waited for plan 4";
}

// One sequence decodes without a pause while plan after plan is prepared, some aborted, and committed between steps.
TEST_F(LocalWorkerTest, PlansChangeUnderLoadAndKeepTheirSharedPages) {
  const auto ids = MakeIds(160, model_->spec().vocab, 13);
  StageChain chain(model_, {});
  const LogitRows expected = testing::ChainLogits(chain, ids, ids.size(), MakeTable(chain.options().kv, 200));
  WorkerRig rig(model_, {.stages = 2});
  ASSERT_TRUE(rig.Adopt(1).ok());
  uint64_t running = 1, next = 2;
  rig.Prepare(next);
  int ready = 0, changes = 0;
  for (uint32_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(rig.SendRows(running, i, i, {ids[i]}).ok());
    ASSERT_EQ(WorkerRig::Logits(rig.Recv()), LogitRows{expected[i]}) << "position " << i << ", plan " << running;
    if (i % 8 != 7) continue;
    while (ready < 2) {
      ASSERT_TRUE(rig.Expect<StageReady>().ok());
      ++ready;
    }
    if (i % 16 == 7) {
      rig.control(0).Abort({.term = 7, .number = next});
      rig.control(1).Abort({.term = 7, .number = next});
      ASSERT_TRUE(rig.WaitAll<StageAborted>().ok());
    } else {
      rig.Commit(next);
      ASSERT_TRUE(rig.WaitAll<StageCommitted>().ok());
      running = next;
      ++changes;
    }
    ready = 0;
    rig.Prepare(++next);
  }
  EXPECT_GE(changes, 9);
}

TEST_F(LocalWorkerTest, ANewTermKeepsWeightsAndDropsPages) {
  WorkerRig rig(model_);
  ASSERT_TRUE(rig.Adopt(1).ok());
  ASSERT_TRUE(rig.SendRows(1, 1, 0, ids_).ok());
  rig.Recv();
  ASSERT_TRUE(rig.Adopt(2).ok());
  ASSERT_TRUE(rig.SendRows(2, 2, 29, {ids_[29]}).ok());
  EXPECT_EQ(WorkerRig::Logits(rig.Recv()), LogitRows{Expected()[29]});
  ASSERT_TRUE(rig.Adopt(1, 8).ok());
  ASSERT_TRUE(rig.SendRows(1, 3, 29, {ids_[29]}, 8).ok());
  EXPECT_NE(WorkerRig::Logits(rig.Recv()), LogitRows{Expected()[29]});
  ASSERT_TRUE(rig.SendRows(1, 4, 0, ids_, 8).ok());
  EXPECT_EQ(WorkerRig::Logits(rig.Recv()), Expected());
}

TEST_F(LocalWorkerTest, CommandsOutOfOrderAreFaultsWithASentence) {
  WorkerRig rig(model_);
  auto fault = [&](const char* words) {
    const StageEvent event = rig.NextEvent();
    const auto* what = std::get_if<StageFault>(&event.what);
    ASSERT_NE(what, nullptr) << "event " << event.what.index() << " instead of: " << words;
    EXPECT_THAT(Message(what->status), HasSubstr(words));
    EXPECT_EQ(event.worker, "w0");
  };
  StageControl& control = rig.control(0);
  EXPECT_EQ(control.name(), "w0");
  control.Commit({.term = 7, .number = 1});
  fault("commit of plan 7.1, but nothing is prepared");
  control.Abort({.term = 7, .number = 1});
  EXPECT_TRUE(rig.Expect<StageAborted>().ok());

  control.Prepare(rig.Request(2));
  ASSERT_TRUE(rig.Expect<StageReady>().ok());
  control.Commit({.term = 7, .number = 3});
  fault("commit of plan 7.3, but plan 7.2 is prepared");
  control.Abort({.term = 7, .number = 2});
  EXPECT_TRUE(rig.Expect<StageAborted>().ok());
  control.Commit({.term = 7, .number = 2});
  fault("nothing is prepared");

  ASSERT_TRUE(rig.Adopt(5).ok());
  control.Commit({.term = 7, .number = 5});
  EXPECT_TRUE(rig.Expect<StageCommitted>().ok()) << "the decision may come twice";
  control.Abort({.term = 7, .number = 5});
  fault("which is running");
  control.Prepare(rig.Request(5));
  fault("not newer");
  control.Prepare(rig.Request(9, 0, 6));
  fault("not newer");

  PrepareRequest bad = rig.Request(6);
  bad.stage = 1;
  control.Prepare(bad);
  fault("stage 1 of a plan of 1");
  bad = rig.Request(6);
  bad.plan.stages[0].layers.end = 3;
  control.Prepare(bad);
  EXPECT_FALSE(rig.Expect<StageReady>().ok());
  bad = rig.Request(6);
  bad.plan = EvenPlan({.term = 7, .number = 6}, 0, 9, {"w0"}).value();
  control.Prepare(bad);
  fault("9 layers, the model has 4");
  bad = rig.Request(6);
  bad.plan.stages[0].members[0].worker = "somebody";
  control.Prepare(bad);
  fault("for somebody");
  bad = rig.Request(6);
  bad.num_blocks = 0;
  control.Prepare(bad);
  fault("0 KV blocks");
  bad = rig.Request(6);
  bad.num_blocks = kNoBlock - 1;
  bad.block_size = 1 << 30;
  control.Prepare(bad);
  fault("KV blocks of 1073741824 positions");

  ASSERT_TRUE(rig.SendRows(5, 1, 0, ids_).ok());
  EXPECT_EQ(WorkerRig::Logits(rig.Recv()), Expected()) << "none of it touched the running stage";
}

// A model whose layers come when the test lets them, or not at all.
class SlowModel : public MemoryModel {
 public:
  using MemoryModel::MemoryModel;
  StatusOr<LayerWeights> Layer(int layer) const override {
    while (hold) std::this_thread::yield();
    if (out_of_memory) throw std::bad_alloc();
    if (broken) return DataLoss("blk.{}.attn_q.weight is torn", layer);
    return MemoryModel::Layer(layer);
  }
  std::atomic<bool> hold{false}, out_of_memory{false}, broken{false};
};

TEST_F(LocalWorkerTest, LoadingThatFailsIsAFault) {
  const auto model = std::make_shared<SlowModel>(MakeSpec(), 1);
  WorkerRig rig(model);
  model->broken = true;
  rig.Prepare(1);
  EXPECT_THAT(Message(rig.Expect<StageReady>()), HasSubstr("attn_q.weight is torn"));
  model->broken = false;
  model->out_of_memory = true;
  rig.Prepare(2);
  EXPECT_TRUE(absl::IsResourceExhausted(rig.Expect<StageReady>()));
  model->out_of_memory = false;
  EXPECT_TRUE(rig.Adopt(3).ok());
}

TEST_F(LocalWorkerTest, LoadingGivesWayToAnAbortAndToANewerPrepare) {
  const auto model = std::make_shared<SlowModel>(MakeSpec(), 1);
  WorkerRig rig(model);
  model->hold = true;
  rig.Prepare(1);
  rig.control(0).Commit({.term = 7, .number = 1});
  EXPECT_THAT(Message(rig.Expect<StageCommitted>()), HasSubstr("nothing is prepared")) << "it answers while it loads";
  rig.control(0).Abort({.term = 7, .number = 1});
  rig.Prepare(2);
  rig.Prepare(3);
  model->hold = false;
  std::vector<std::string> events;
  while (events.size() < 3) {
    const StageEvent event = rig.NextEvent();
    const bool fault = std::holds_alternative<StageFault>(event.what);
    events.push_back(fmt::format("{} {}", event.epoch.number,
                                 fault                                              ? "fault"
                                 : std::holds_alternative<StageAborted>(event.what) ? "aborted"
                                                                                    : "ready"));
  }
  EXPECT_EQ(events, (std::vector<std::string>{"1 aborted", "2 fault", "3 ready"}));
  rig.Commit(3);
  EXPECT_TRUE(rig.Expect<StageCommitted>().ok());
}

TEST_F(LocalWorkerTest, ProgressIsReported) {
  WorkerRig rig(model_);
  auto seen = std::make_shared<Inbox<StageEvent>>();
  rig.control(0).SetEventSink([seen](StageEvent e) { seen->Push(std::move(e)); });
  rig.Prepare(1);
  uint64_t last = 0, total = 0;
  while (std::optional<StageEvent> event = seen->Pop(Soon())) {
    const auto* progress = std::get_if<StageProgress>(&event->what);
    if (progress == nullptr) break;
    EXPECT_GE(progress->done, last);
    last = progress->done;
    total = progress->total;
  }
  EXPECT_GT(total, 0u);
  EXPECT_EQ(last, total);
}

// Whatever a payload holds, a step error comes in its place, and the stage goes on.
TEST_F(LocalWorkerTest, GarbageBecomesAStepError) {
  WorkerRig rig(model_, {.stages = 2});
  ASSERT_TRUE(rig.Adopt(1).ok());
  StepBatch batch;
  batch.seqs.push_back(MakeRows(1, 0, 30, MakeTable({.block_size = 4, .num_blocks = 64}, 30), 1));
  batch.seqs[0].requests[0].touched = {1, 2, 3};
  const std::vector<std::byte> good = WorkerRig::Payload(batch, ids_);
  const LogitRows expected = Expected();
  std::mt19937 random(99);
  int errors = 0;
  for (uint64_t step = 0; step < 400; ++step) {
    std::vector<std::byte> bad = good;
    switch (step % 4) {
      case 0:
        bad.resize(random() % bad.size());
        break;
      case 1:
        for (int i = 0; i < 3; ++i) bad[random() % 200] = static_cast<std::byte>(random());
        break;
      case 2:
        bad.assign(random() % 300, static_cast<std::byte>(random()));
        break;
      case 3:
        for (std::byte& b : bad) b = static_cast<std::byte>(random());
        break;
    }
    FrameHeader header = WorkerRig::Header(step % 5 == 4 ? FrameKind::kHidden : FrameKind::kTokens, 1, step);
    ASSERT_TRUE(rig.SendBytes(header, bad).ok());
    const Frame frame = rig.Recv();
    EXPECT_EQ(frame.header.step, StepId{step});
    ASSERT_TRUE(frame.header.kind == FrameKind::kStepError || frame.header.kind == FrameKind::kAnswer);
    errors += frame.header.kind == FrameKind::kStepError;
  }
  EXPECT_GT(errors, 300);
  ASSERT_TRUE(rig.SendBytes(WorkerRig::Header(FrameKind::kHello, 1, 0), {}).ok());
  ASSERT_TRUE(rig.SendBytes(WorkerRig::Header(FrameKind::kLogitsQuestion, 1, 0), {}).ok());
  ASSERT_TRUE(rig.SendRows(1, 1000, 0, ids_).ok());
  const Frame frame = rig.Recv();
  EXPECT_EQ(frame.header.step, StepId{1000});
  EXPECT_EQ(WorkerRig::Logits(frame), expected);
}

TEST_F(LocalWorkerTest, TheEndOfALinkTravelsOn) {
  WorkerRig rig(model_, {.stages = 3});
  ASSERT_TRUE(rig.Adopt(1).ok());
  rig.worker(1).Stop();
  EXPECT_TRUE(absl::IsUnavailable(rig.from_last().Recv(Soon()).status()));
  // The stage before notices when it sends.
  Status sent;
  for (uint64_t step = 0; sent.ok() && step < 10000; ++step) {
    sent = rig.SendRows(1, step, 0, ids_);
    std::this_thread::yield();
  }
  EXPECT_TRUE(absl::IsUnavailable(sent)) << sent;
  rig.control(1).Prepare(rig.Request(2, 1));
  EXPECT_TRUE(absl::IsUnavailable(rig.Expect<StageReady>()));
  rig.control(2).Commit({.term = 7, .number = 2});
  EXPECT_FALSE(rig.Expect<StageCommitted>().ok());
  rig.control(1).Abort({.term = 7, .number = 2});
  EXPECT_TRUE(absl::IsUnavailable(rig.Expect<StageAborted>()));
}

TEST_F(LocalWorkerTest, StopsWhileItWaitsToSendAndWhileItLoads) {
  const auto model = std::make_shared<SlowModel>(MakeSpec(), 51);
  WorkerRig rig(model, {.stages = 1, .links = {.max_queued_frames = 2}});
  ASSERT_TRUE(rig.Adopt(1).ok());
  for (uint64_t step = 0; step < 5; ++step) ASSERT_TRUE(rig.SendRows(1, step, 0, ids_).ok());
  while (rig.worker(0).stats().steps < 3) std::this_thread::yield();
  rig.Prepare(2);
  std::thread stopper([&] { rig.worker(0).Stop(); });
  stopper.join();
  rig.worker(0).Stop();
}

// Senders that run ahead of a commit wait too; nothing is lost.
TEST_F(LocalWorkerTest, TooManyEarlyFramesWaitInTheLink) {
  WorkerRig rig(model_);
  ASSERT_TRUE(rig.Adopt(1).ok());
  rig.Prepare(2);
  ASSERT_TRUE(rig.Expect<StageReady>().ok());
  constexpr uint64_t kFrames = 400;
  for (uint64_t step = 0; step < kFrames; ++step) ASSERT_TRUE(rig.SendRows(2, step, 0, {ids_[0]}).ok());
  rig.Commit(2);
  for (uint64_t step = 0; step < kFrames; ++step) EXPECT_EQ(rig.Recv().header.step, StepId{step});
  ASSERT_TRUE(rig.Expect<StageCommitted>().ok());
}

}  // namespace
}  // namespace gyre
