// A worker with a tiny model, which the test drives in place of a coordinator.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/inbox.h"
#include "base/step_codec.h"
#include "tests/testing/test_device.h"
#include "tests/testing/tiny_model.h"
#include "worker/worker.h"

namespace gyre::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

class WorkerStates : public ::testing::Test {
 protected:
  static constexpr seconds kTimeout{30};

  void SetUp() override {
    model_ = *OpenModel(file_.path());
    port_ = *RingPort::Open({});
    Make({});
  }
  // Makes a worker with these options, which replaces the one before.
  void Make(WorkerOptions options) {
    if (worker_ != nullptr) worker_->Stop();
    options.name = "w";
    options.model = model_;
    options.port = port_.get();
    options.device = TestDevice(Isa::kRef, 1);
    worker_ = std::make_unique<Worker>(std::move(options));
    worker_->control().SetEventSink([this](StageEvent e) { events_.Push(std::move(e)); });
  }
  void TearDown() override { worker_->Stop(); }

  Plan PlanOf(uint64_t number, const std::string& worker = "w") const {
    return {.epoch = E(number),
            .model_hash = model_->content_hash(),
            .num_layers = 5,
            .stages = MakeStages({{worker, "", {0, 5}}})};
  }
  void Prepare(uint64_t number, int stage = 0, bool wire = true) {
    worker_->control().Apply(PrepareChange({.plan = PlanOf(number, stage < 0 ? "x" : "w"),
                                            .stage = stage,
                                            .block_size = 4,
                                            .memory = {.units = {8}},
                                            .kv_type = KvType::kF32,
                                            .sources = {}}));
    if (wire && stage >= 0) WireEnds(number);
  }
  // Makes the coordinator's two links of a plan with one stage.
  void WireEnds(uint64_t number) {
    const Hello hello{.epoch = E(number), .hop = 0, .model_hash = model_->content_hash()};
    links_.push_back(*port_->Dial("", hello, After(kTimeout)));
    Hello last = hello;
    last.hop = 1;
    auto in = port_->Accept(last, After(kTimeout));
    ASSERT_TRUE(in.ok()) << in.status();
    links_.push_back(*std::move(in));
  }
  Link& to_stage() { return **(links_.end() - 2); }
  Link& from_stage() { return *links_.back(); }
  // Prepares and runs the worker with `blocks` pages of `size` positions.
  void Run(uint64_t number, uint32_t blocks = 8, int size = 4) {
    control().Apply(PrepareChange({.plan = PlanOf(number),
                                   .stage = 0,
                                   .block_size = size,
                                   .memory = {.units = {blocks}},
                                   .kv_type = KvType::kF32}));
    WireEnds(number);
    ASSERT_EQ(Next(number), "ready");
    control().Apply({ChangeVerb::kCommit, E(number)});
    ASSERT_EQ(Next(number), "committed");
  }
  // Sends a step over the first stage's link.
  // `computed_us`: of the stages before.
  void SendStep(uint64_t number, uint64_t step, const StepBatch& batch, uint32_t computed_us = 0) {
    Encoder prefix;
    EncodeStepPrefix(batch, &prefix);
    const std::vector<TokenId> ids(batch.TotalRows(), 3);
    const ByteSpan parts[] = {prefix.bytes(), std::as_bytes(std::span(ids))};
    const FrameHeader header{.kind = FrameKind::kTokens,
                             .dtype = WireType::kI32,
                             .epoch = E(number),
                             .step = StepId{step},
                             .rows = batch.TotalRows(),
                             .computed_us = computed_us,
                             .slowest_us = computed_us};
    ASSERT_TRUE(to_stage().Send(header, parts, After(kTimeout)).ok());
  }
  // Keeps the stage's thread busy until it is released.
  void HoldStageThread() {
    worker_->OnStageThread([this] {
      held_ = true;
      while (!release_) std::this_thread::sleep_for(milliseconds(1));
    });
    while (!held_) std::this_thread::sleep_for(milliseconds(1));
  }
  void ReleaseStageThread() { release_ = true; }
  // The next event other than progress, by name; a fault with its sentence.
  std::string Next(uint64_t number) {
    for (;;) {
      auto event = events_.Pop(After(kTimeout));
      if (!event) return "nothing";
      if (std::holds_alternative<StageProgress>(event->what)) continue;
      EXPECT_EQ(event->epoch.number, number);
      if (event->AnswerTo(ChangeVerb::kPrepare) != nullptr) return "ready";
      if (event->AnswerTo(ChangeVerb::kMove) != nullptr) return "moved";
      if (event->AnswerTo(ChangeVerb::kCommit) != nullptr) return "committed";
      if (event->AnswerTo(ChangeVerb::kAbort) != nullptr) return "aborted";
      return "fault: " + Message(std::get<StageFault>(event->what).status);
    }
  }
  bool Silent() { return !events_.Pop(After(milliseconds(30))).has_value(); }
  StageControl& control() { return worker_->control(); }
  Epoch E(uint64_t number) const { return {.term = term_, .number = number}; }

  uint64_t term_ = 1;  // of the coordinator
  uint64_t last_number_ = 0;
  std::atomic<bool> held_{false}, release_{false};
  testing::TinyModelFile file_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<RingPort> port_;
  Inbox<StageEvent> events_;
  std::vector<std::unique_ptr<Link>> links_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace gyre::testing
