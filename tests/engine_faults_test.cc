// The engine over a ring that a test answers: rings that break, fall silent, are given up and replaced, wrong answers,
// limits and held requests. No clock, no chance: each test says what comes when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "tests/testing/ring_runner.h"
#include "tests/testing/scripted_stage.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::Runner;
using testing::ScriptedStage;

class EngineFaults : public ::testing::Test {
 protected:
  EngineFaults() {
    options_.scheduler.num_blocks = 32;
    options_.scheduler.block_size = 4;
    options_.vocab = ScriptedStage::kVocab;
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
  // Returns after a whole pass of the loop that saw everything before.
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
  // Its draws are undecided as a rule.
  static Request Hot(uint32_t n, uint64_t seed, size_t length = 3) {
    Request r = Greedy(n, length, static_cast<TokenId>(10 * seed));
    r.sampling = {.temperature = 1.5f, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
    return r;
  }
  // What each request gives alone in a ring that nothing happens to.
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
  // Serves to the end and compares.
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
  EXPECT_GE(engine_->stats().full_logits_questions, 2u);
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
  options_.scheduler.num_blocks = 4;
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
  EXPECT_EQ(engine_->stats().scheduler.num_blocks, 4u);
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
  EXPECT_TRUE(absl::IsUnavailable(o.status)) << o.status;
  EXPECT_THAT(Message(o.status), HasSubstr("broke three times in a row"));
  Runner next(*engine_);
  next.Add(Greedy(5));
  ExpectTexts(next, Undisturbed({Greedy(5)}));
}

TEST_F(EngineFaults, AStepErrorOfTwoFailsTheOneThatFailsAlone) {
  const std::vector<Request> requests{Greedy(5), Greedy(5, 3, 20)};
  const auto expected = Undisturbed(requests);
  Start();
  engine_->Drain([](const auto&) {});
  Runner runner(*engine_);
  for (const Request& r : requests) runner.Add(r);
  engine_->Resume(std::nullopt);
  while (!runner.done()) {
    const auto r = stage_.Poll(std::chrono::milliseconds(2));
    if (r.kind == FrameKind{}) continue;
    const auto seqs = r.seqs();
    const bool bad = std::find(seqs.begin(), seqs.end(), runner.id(1)) != seqs.end();
    bad ? stage_.FailStep(r, "a planted fault") : stage_.Answer(r);
  }
  const auto outcomes = runner.Wait();
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
  Runner runner(*engine_);
  runner.Add(Greedy(8));
  while (!runner.done()) {
    const auto r = stage_.Poll(std::chrono::milliseconds(2));
    if (r.kind == FrameKind{}) continue;
    now_ += Duration(seconds(590)).count();  // a slow machine
    Pass();
    stage_.Answer(r);
  }
  EXPECT_TRUE(runner.Wait()[0].finished);
  EXPECT_TRUE(broken().empty());
}

TEST_F(EngineFaults, ADeadlineIsReadOnTheEnginesClock) {
  Start();
  Runner runner(*engine_);
  Request r = Greedy(5);
  r.deadline = Deadline(Duration(now_)) + seconds(5);
  runner.Add(r);
  stage_.Next();
  Pass();
  EXPECT_FALSE(runner.done());
  now_ += Duration(seconds(5)).count();
  Pass();
  ASSERT_TRUE(runner.done());
  EXPECT_TRUE(absl::IsDeadlineExceeded(runner.Wait()[0].status));
}

TEST_F(EngineFaults, FullLogitsOfAnotherVocabularyFailTheRequest) {
  for (const bool asks : {true, false}) {
    options_.candidates_path = asks;
    for (const int size : {ScriptedStage::kVocab - 1, ScriptedStage::kVocab + 1}) {
      Start();
      Runner runner(*engine_);
      runner.Add(Hot(5, 1));
      const std::vector<float> wrong(static_cast<size_t>(size), 1.0f);
      if (asks) {
        stage_.AnswerQuestion(ServeToQuestion().question, wrong);
      } else {
        stage_.AnswerStep(stage_.Next(), [&](RowAnswer* row) { row->values = wrong; });
      }
      const Outcome o = runner.Wait()[0];
      EXPECT_TRUE(absl::IsInternal(o.status)) << o.status;
      EXPECT_THAT(Message(o.status), HasSubstr("the vocabulary has 97"));
      engine_.reset();
    }
  }
  Start();
  Runner runner(*engine_);
  Request scored = Greedy(0);
  scored.prompt_logits = true;
  runner.Add(scored);
  stage_.AnswerStep(stage_.Next(), [&](RowAnswer* row) { row->values.pop_back(); });
  EXPECT_THAT(Message(runner.Wait()[0].status), HasSubstr("96 logits for position 0"));
}

TEST_F(EngineFaults, AStopIdEndsTheText) {
  const auto expected = Undisturbed({Greedy(8)})[0];
  Start();
  Request r = Greedy(8);
  r.stop_ids = {-1, expected[3]};
  const size_t end = static_cast<size_t>(std::find(expected.begin(), expected.end(), expected[3]) - expected.begin());
  for (const bool ignored : {false, true}) {
    r.ignore_end = ignored;
    Runner runner(*engine_);
    runner.Add(r);
    stage_.ServeUntil([&] { return runner.done(); });
    const Outcome o = runner.Wait()[0];
    EXPECT_EQ(o.reason, ignored ? FinishReason::kLength : FinishReason::kStop);
    EXPECT_EQ(o.tokens.size(), ignored ? 8 : end + 1);
  }
}

TEST_F(EngineFaults, RequestsBeyondTheLimitsAreRefusedWithTheNumbers) {
  options_.limits = {.max_waiting = 2, .max_stops = 2, .max_stop_bytes = 3, .max_stop_ids = 4, .max_logit_biases = 5};
  options_.scheduler.max_sequences = 1;
  Start();
  const auto refused = [&](auto change) {
    Request r = Greedy(3);
    change(r);
    const Status status = engine_->Submit(r, [](SeqId, const Event&) {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return Message(status);
  };
  EXPECT_THAT(refused([](Request& r) { r.stops = {"a", "b", "c"}; }), HasSubstr("3 stop strings, at most 2"));
  EXPECT_THAT(refused([](Request& r) { r.stops = {"abcd"}; }), HasSubstr("4 bytes, at most 3"));
  EXPECT_THAT(refused([](Request& r) { r.stop_ids.assign(5, 1); }), HasSubstr("5 stop ids, at most 4"));
  EXPECT_THAT(refused([](Request& r) { r.sampling.logit_bias.assign(6, {1, 1}); }), HasSubstr("6 logit biases"));
  Runner runner(*engine_);
  for (int i = 0; i < 3; ++i) runner.Add(Greedy(3));
  const Status full = engine_->Submit(Greedy(3), [](SeqId, const Event&) {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(Message(full), HasSubstr("the queue is full"));
  stage_.ServeUntil([&] { return runner.done(); });
  for (const Outcome& o : runner.Wait()) EXPECT_TRUE(o.finished) << o.status;
  Runner later(*engine_);
  for (int i = 0; i < 3; ++i) later.Add(Greedy(3));
  stage_.ServeUntil([&] { return later.done(); });
  for (const Outcome& o : later.Wait()) EXPECT_TRUE(o.finished) << o.status;
}

TEST_F(EngineFaults, AHeldRequestStandsStillAndGoesOn) {
  const std::vector<Request> requests{Greedy(6), Greedy(12, 3, 20)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  for (const Request& r : requests)
    runner.Add(r, [&](SeqId seq, size_t n) {
      if (seq == SeqId{1} && n == 2) engine_->Hold(seq);
    });
  ASSERT_EQ(runner.id(0), SeqId{1});
  // At most one more step was on its way.
  size_t alone = 0;
  while (alone < 5) {
    const auto r = stage_.Next();
    alone = r.seqs() == std::vector<SeqId>{runner.id(1)} ? alone + 1 : 0;
    stage_.Answer(r);
  }
  engine_->Hold(SeqId{1234});
  engine_->Unhold(SeqId{1234});
  engine_->Unhold(runner.id(0));
  ExpectTexts(runner, expected);
}

TEST_F(EngineFaults, ARingOfAnotherSaltFindsNothingInTheCache) {
  Start();
  const auto cached = [&](uint64_t salt) {
    engine_->Resume(stage_.NewRing(salt));
    Runner runner(*engine_);
    runner.Add(Greedy(2, 17));
    stage_.ServeUntil([&] { return runner.done(); });
    return runner.Wait()[0].usage.cached_tokens;
  };
  EXPECT_EQ(cached(0), 0u);
  EXPECT_EQ(cached(0), 16u);
  EXPECT_EQ(cached(7), 0u);
  EXPECT_EQ(cached(7), 16u);
}

TEST_F(EngineFaults, TheListOfSequencesIsPublishedSoon) {
  Start();
  Runner runner(*engine_);
  runner.Add(Greedy(4, 9));
  const auto step = stage_.Next();
  while (engine_->stats().sequences.empty()) std::this_thread::yield();
  EXPECT_EQ(engine_->stats().sequences[0].id, runner.id(0));
  EXPECT_EQ(engine_->stats().sequences[0].prompt, 9u);
  stage_.Answer(step);
  stage_.ServeUntil([&] { return runner.done(); });
  while (!engine_->stats().sequences.empty()) std::this_thread::yield();
}

}  // namespace
}  // namespace gyre
