// An engine over a ring that the test answers, with a clock that only the test moves.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "tests/testing/ring_runner.h"
#include "tests/testing/scripted_stage.h"

namespace gyre::testing {

class EngineRig : public ::testing::Test {
 protected:
  EngineRig() {
    options_.scheduler.memory[kPageGroup] = 32;
    options_.scheduler.block_size = 4;
    options_.vocab = ScriptedStage::kVocab;
    options_.dim = ScriptedStage::kDim;
    options_.context = 128;
    options_.candidates = 1;  // rarely decides a draw at temperature 1
    options_.on_broken = [this](Epoch, const Status& why) {
      const std::lock_guard lock(mutex_);
      broken_.push_back(why);
    };
    options_.now = [this] { return Deadline(Duration(now_)); };
  }
  // An engine that has a ring.
  void Start() {
    auto engine = Engine::Start(options_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    engine_->Resume(stage_.NewRing());
  }
  // Returns after a complete pass of the loop that saw all earlier events.
  void Pass() {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(engine_->CheckIntegrity().ok()) << engine_->CheckIntegrity();
  }
  std::vector<Status> broken() {
    const std::lock_guard lock(mutex_);
    return broken_;
  }
  void WaitUntilBroken(size_t times) {
    while (broken().size() < times) Pass();
  }
  static Request Greedy(uint32_t n, size_t length = 3, TokenId first = 1) {
    Request r;
    for (size_t i = 0; i < length; ++i) r.prompt.push_back(first + static_cast<TokenId>(i));
    r.max_new_tokens = n;
    r.sampling.temperature = 0;
    return r;
  }
  // A request whose draws are mostly undecided by the candidates.
  static Request Hot(uint32_t n, uint64_t seed, size_t length = 3) {
    Request r = Greedy(n, length, static_cast<TokenId>(10 * seed));
    r.sampling = {.temperature = 1.5f, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
    return r;
  }
  // The text of each request alone, in a ring without disturbances.
  std::vector<std::vector<TokenId>> Undisturbed(const std::vector<Request>& requests) {
    ScriptedStage stage;
    auto engine = Engine::Start(options_);
    (*engine)->Resume(stage.NewRing());
    std::vector<std::vector<TokenId>> out;
    for (const Request& r : requests) {
      Runner runner(**engine);
      runner.Add(r);
      stage.ServeUntil([&] { return runner.done(); });
      EXPECT_TRUE(runner.Wait()[0].finished) << runner.Wait()[0].status;
      out.push_back(runner.Wait()[0].tokens);
    }
    return out;
  }
  // Adds requests so that they begin in one step.
  void AddTogether(Runner& runner, const std::vector<Request>& requests) {
    engine_->Drain([](const auto&) {});
    for (const Request& r : requests) runner.Add(r);
    engine_->Resume(std::nullopt);
  }
  // Calls fn(received) for each frame until all have ended, or no frame comes any more.
  template <typename Fn>
  void ForEachFrame(Runner& runner, const Fn& fn) {
    for (int idle = 0; !runner.done() && idle < 2000;) {
      const ScriptedStage::Received r = stage_.Poll(std::chrono::milliseconds(2));
      r.kind == FrameKind{} ? static_cast<void>(++idle) : fn(r);
    }
  }
  // Serves to the end and compares the texts.
  void ExpectTexts(Runner& runner, const std::vector<std::vector<TokenId>>& expected) {
    stage_.ServeUntil([&] { return runner.done(); });
    const auto outcomes = runner.Wait();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
      EXPECT_EQ(outcomes[i].tokens, expected[i]) << i;
      EXPECT_EQ(outcomes[i].terminals, 1);
    }
    Pass();
  }
  // Answers steps until the engine asks for full logits.
  ScriptedStage::Received ServeToQuestion() {
    for (;;) {
      ScriptedStage::Received r = stage_.Next();
      if (r.kind != FrameKind::kTokens) return r;
      stage_.Answer(r);
    }
  }

  std::mutex mutex_;
  std::vector<Status> broken_;
  std::atomic<Duration::rep> now_{Duration(std::chrono::hours(1)).count()};
  EngineOptions options_;
  ScriptedStage stage_;
  std::unique_ptr<Engine> engine_;
  int rounds_ = 0;
};

}  // namespace gyre::testing
