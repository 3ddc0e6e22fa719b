// Rings that break, fall silent, are given up and replaced, stages that fail: the engine over a ring that a test
// answers. Each test says what comes when, so none depends on time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>

#include "tests/testing/engine_rig.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::Runner;
using testing::ScriptedStage;

class EngineFaults : public testing::EngineRig {};

TEST_F(EngineFaults, SeveralUndecidedDrawsWhenTheRingIsGone) {
  const std::vector<Request> requests{Hot(6, 1), Hot(6, 2), Hot(6, 3)};
  const auto expected = Undisturbed(requests);
  Start();
  engine_->Drain([](const auto&) {});  // so that one step takes them all
  Runner runner(*engine_);
  for (const Request& r : requests) runner.Add(r);
  engine_->Resume(std::nullopt);
  const auto step = stage_.Next();
  ASSERT_EQ(step.batch.seqs.size(), 3u);
  stage_.CloseToFirst();
  stage_.Answer(step);
  WaitUntilBroken(1);
  EXPECT_GE(engine_->stats().full_logits_requests, 2u);
  engine_->Resume(stage_.NewRing());
  ExpectTexts(runner, expected);
}

TEST_F(EngineFaults, ADrainIsGivenUpAndANewRingComesThoughTheOldNeverBroke) {
  const std::vector<Request> requests{Greedy(5)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  runner.Add(requests[0]);
  const auto lost = stage_.Next();
  bool drained = false;
  engine_->Drain([&](const auto&) { drained = true; });
  Pass();
  engine_->Resume(std::nullopt);
  engine_->Resume(stage_.NewRing());
  ExpectTexts(runner, expected);
  EXPECT_FALSE(drained);
  EXPECT_TRUE(broken().empty());
}

TEST_F(EngineFaults, AQuestionThatIsOpenWhenANewRingComesIsRepeated) {
  const std::vector<Request> requests{Hot(5, 1)};
  const auto expected = Undisturbed(requests);
  for (const bool breaks : {false, true}) {
    Start();
    Runner runner(*engine_);
    runner.Add(requests[0]);
    const auto question = ServeToQuestion();
    if (breaks) {
      stage_.CloseBoth();
      WaitUntilBroken(1);
    }
    engine_->Resume(stage_.NewRing());
    const auto again = stage_.Next();
    ASSERT_EQ(again.kind, FrameKind::kTokens);
    EXPECT_EQ(again.batch.seqs[0].first_position, question.question.position);
    EXPECT_EQ(again.batch.seqs[0].requests[0].mode, RowMode::kFullLogits);
    stage_.Answer(again);
    ExpectTexts(runner, expected);
    engine_.reset();
  }
}

// A question about a state that the last stage has no longer.
TEST_F(EngineFaults, AnEmptyAnswerHasTheRowSentAgain) {
  const std::vector<Request> requests{Hot(5, 1)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  runner.Add(requests[0]);
  stage_.AnswerQuestion(ServeToQuestion().question, {});
  ExpectTexts(runner, expected);
}

TEST_F(EngineFaults, ThePreemptedDropsItsQuestionAndItsLateAnswerIsNotTaken) {
  options_.scheduler.memory[kPageGroup] = 4;
  options_.scheduler.prefix_cache = false;
  const std::vector<Request> requests{Greedy(12, 4), Hot(4, 2, 4)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  for (const Request& r : requests) runner.Add(r);
  // The first takes block after block; what the second asks stays open.
  ScriptedStage::Received question;
  while (engine_->stats().scheduler.preemptions == 0) {
    const auto r = stage_.Next();
    if (r.kind == FrameKind::kTokens) {
      stage_.Answer(r);
    } else {
      question = r;
    }
    Pass();
  }
  ASSERT_EQ(question.question.seq, runner.id(1));
  std::atomic<bool> drained{false};
  engine_->Drain([&](const auto&) { drained = true; });
  while (!drained) {
    const auto r = stage_.Poll(std::chrono::milliseconds(1));
    if (r.kind == FrameKind::kTokens) stage_.Answer(r);
    Pass();
    ASSERT_EQ(engine_->stats().pauses, 0u);
    ASSERT_LT(++rounds_, 2000) << "the question holds the drain up";
  }
  engine_->Resume(std::nullopt);
  const uint64_t discarded = engine_->stats().discarded_results;
  stage_.AnswerQuestion(question.question, stage_.LogitsOf(question.question));
  ExpectTexts(runner, expected);
  EXPECT_EQ(engine_->stats().discarded_results, discarded + 1);
}

TEST_F(EngineFaults, ASmallerCacheStaysSmallWhenThePlanIsLost) {
  options_.scheduler.prefix_cache = false;
  Start();
  engine_->Drain([](const auto&) {});
  engine_->Shrink(4);
  engine_->Resume(stage_.NewRing());
  engine_->Lose(Unavailable("the worker is gone"));
  engine_->Resume(stage_.NewRing());
  Runner runner(*engine_);
  for (int i = 0; i < 4; ++i) runner.Add(Greedy(3, 6, 10 * i));
  while (!runner.done()) {
    const auto r = stage_.Poll(std::chrono::milliseconds(2));
    if (r.kind == FrameKind{}) continue;
    for (const SeqRows& s : r.batch.seqs) {
      for (BlockId block : s.blocks[0]) EXPECT_LT(block, 4u) << "the workers have four";
    }
    stage_.Answer(r);
  }
  EXPECT_EQ(engine_->stats().scheduler.memory[kPageGroup].units, 4u);
}

TEST_F(EngineFaults, ThreeBrokenRingsInARowFailTheRequestAndNoOther) {
  Start();
  Runner runner(*engine_);
  runner.Add(Greedy(5));
  for (size_t i = 1; i <= 3; ++i) {
    stage_.Next();
    stage_.CloseBoth();
    WaitUntilBroken(i);
    engine_->Resume(stage_.NewRing());
  }
  const Outcome o = runner.Wait()[0];
  EXPECT_TRUE(absl::IsInvalidArgument(o.status)) << o.status;
  EXPECT_THAT(Message(o.status), HasSubstr("in the ring each of the three times that it broke"));
  Pass();
  EXPECT_EQ(engine_->stats().poison_requests, 1u);
  Runner again(*engine_);
  again.Add(Greedy(5));
  EXPECT_THAT(Message(again.Wait()[0].status), HasSubstr("refused for 600 s"));
  Runner next(*engine_);
  next.Add(Greedy(5, 3, 20));
  ExpectTexts(next, Undisturbed({Greedy(5, 3, 20)}));
}

TEST_F(EngineFaults, AStepErrorOfTwoFailsTheOneThatFailsAlone) {
  const std::vector<Request> requests{Greedy(5), Greedy(5, 3, 20)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  AddTogether(runner, requests);
  ForEachFrame(runner, [&](const auto& r) {
    const auto seqs = r.seqs();
    const bool bad = std::find(seqs.begin(), seqs.end(), runner.id(1)) != seqs.end();
    bad ? stage_.FailStep(r, "a planted fault") : stage_.Answer(r);
  });
  const auto outcomes = runner.Wait();
  Pass();
  EXPECT_EQ(engine_->stats().step_errors, 3u) << "once beside the other and twice alone";
  EXPECT_EQ(outcomes[0].tokens, expected[0]) << outcomes[0].status;
  EXPECT_TRUE(absl::IsInternal(outcomes[1].status)) << outcomes[1].status;
  EXPECT_THAT(Message(outcomes[1].status), HasSubstr("a planted fault"));
}

TEST_F(EngineFaults, ASilentRingBreaksWhenItsTimeIsUp) {
  options_.step_timeout = seconds(600);
  for (const bool asks : {false, true}) {
    broken_.clear();
    Start();
    Runner runner(*engine_);
    runner.Add(Hot(5, 1));
    asks ? ServeToQuestion() : stage_.Next();
    Pass();
    now_ += Duration(seconds(599)).count();
    Pass();
    EXPECT_EQ(broken().size(), 0u);
    now_ += Duration(seconds(2)).count();
    Pass();
    ASSERT_EQ(broken().size(), 1u) << "asks " << asks;
    EXPECT_THAT(Message(broken()[0]), HasSubstr("at most 600 s"));
    engine_.reset();
    EXPECT_TRUE(runner.Wait()[0].cancelled);
  }
}

TEST_F(EngineFaults, AnIdleRingAndOneThatAnswersNeverFallSilent) {
  EXPECT_EQ(options_.step_timeout, Duration(std::chrono::minutes(10))) << "the default";
  Start();
  now_ += Duration(std::chrono::hours(24)).count();
  Pass();
  // Three steps are on their way, so that the ring always owes some; each takes its time.
  engine_->Resume(stage_.NewRing(0, 3));
  Runner runner(*engine_);
  for (int i = 0; i < 3; ++i) {
    runner.Add(Greedy(8, 3, 10 * i));
    Pass();
  }
  std::deque<ScriptedStage::Received> steps;
  while (!runner.done()) {
    const auto r = stage_.Poll(std::chrono::milliseconds(2));
    if (r.kind != FrameKind{}) steps.push_back(r);
    if (r.kind != FrameKind{} || steps.empty()) continue;
    now_ += Duration(seconds(590)).count();
    Pass();
    stage_.Answer(steps.front());
    steps.pop_front();
    Pass();
  }
  EXPECT_TRUE(runner.Wait()[0].finished);
  EXPECT_TRUE(broken().empty());
}

}  // namespace
}  // namespace gyre
