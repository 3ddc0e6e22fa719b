// A request's settings, how it is held back and how it ends: the engine over a ring that a test answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tests/testing/engine_rig.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::Runner;
using testing::ScriptedStage;

class EngineRequests : public testing::EngineRig {};

TEST_F(EngineRequests, ADeadlineIsReadOnTheEnginesClock) {
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

TEST_F(EngineRequests, FullLogitsOfAnotherVocabularyFailTheRequest) {
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

TEST_F(EngineRequests, ALeakedBlockComesBackWhenTheEngineIsIdle) {
  options_.scheduler.leaks_for_test = 3;
  Start();
  const auto run = [this] {
    Runner runner(*engine_);
    runner.Add(Greedy(4));
    stage_.ServeUntil([&] { return runner.done(); });
    EXPECT_TRUE(runner.Wait()[0].finished);
  };
  run();
  while (engine_->stats().integrity_checks == 0) std::this_thread::yield();
  Pass();
  EXPECT_EQ(engine_->stats().integrity_faults, 1u);
  EXPECT_EQ(engine_->stats().scheduler.leaked_blocks, 3u);
  EXPECT_EQ(engine_->stats().scheduler.memory[kPageGroup].available, options_.scheduler.memory[kPageGroup]);
  // Not after each request, but again when time has passed.
  run();
  Pass();
  EXPECT_EQ(engine_->stats().integrity_checks, 1u);
  now_ += Duration(seconds(11)).count();
  Pass();
  EXPECT_EQ(engine_->stats().integrity_checks, 2u);
  EXPECT_EQ(engine_->stats().integrity_faults, 1u);
}

// Two sequences might compute in a block that was given back twice, so all is computed again without what is cached.
TEST_F(EngineRequests, NothingGoesOnWithABlockThatWasGivenBackTwice) {
  const auto expected = Undisturbed({Greedy(2), Greedy(50)});
  options_.scheduler.double_frees_for_test = 1;
  Start();
  Runner runner(*engine_);
  runner.Add(Greedy(2));
  runner.Add(Greedy(50));
  stage_.ServeUntil([&] { return !broken().empty(); });
  EXPECT_THAT(Message(broken()[0]), HasSubstr("is given back, and it has no owner"));
  engine_->Resume(stage_.NewRing());
  stage_.ServeUntil([&] { return runner.done(); });
  const std::vector<Outcome> outcomes = runner.Wait();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
    EXPECT_EQ(outcomes[i].tokens, expected[i]) << i;
  }
  Pass();
  EXPECT_EQ(engine_->stats().integrity_faults, 1u);
  EXPECT_EQ(broken().size(), 1u);
}

// Step by step. What the prefix cache has is told from the first one on.
TEST_F(EngineRequests, APromptTellsHowFarItIs) {
  options_.scheduler.chunk = 8;
  Start();
  for (const uint32_t cached : {0u, 16u}) {
    Runner runner(*engine_);
    Request r = Greedy(3, 20);
    r.progress = true;
    runner.Add(r);
    stage_.ServeUntil([&] { return runner.done(); });
    const Outcome o = runner.Wait()[0];
    EXPECT_TRUE(o.finished) << o.status;
    std::vector<uint32_t> processed;
    for (const PromptProgress& p : o.progress) {
      EXPECT_EQ(p.total, 20u);
      EXPECT_EQ(p.cached, cached);
      processed.push_back(p.processed);
    }
    EXPECT_EQ(processed, cached == 0 ? (std::vector<uint32_t>{8, 16, 20}) : std::vector<uint32_t>{20});
  }
}

// Its client has left: the rows that are in flight land, and no others follow.
TEST_F(EngineRequests, ACancelledPromptGetsNoFurtherStep) {
  options_.scheduler.chunk = 8;
  Start();
  Runner runner(*engine_);
  runner.Add(Greedy(3, 90));
  stage_.Answer(stage_.Next());
  Pass();
  std::vector<ScriptedStage::Received> in_flight;
  for (;;) {
    in_flight.push_back(stage_.Poll(std::chrono::milliseconds(1)));
    if (in_flight.back().kind == FrameKind{}) break;
  }
  in_flight.pop_back();
  ASSERT_FALSE(in_flight.empty());
  const uint64_t rows = engine_->stats().prompt_rows;
  ASSERT_LT(rows, 60u);
  engine_->Cancel(runner.id(0));
  Pass();
  EXPECT_TRUE(runner.Wait()[0].cancelled) << "it does not wait for its steps";
  for (const ScriptedStage::Received& step : in_flight) stage_.Answer(step);
  Pass();
  EXPECT_EQ(stage_.Poll(std::chrono::milliseconds(1)).kind, FrameKind{});
  EXPECT_EQ(engine_->stats().prompt_rows, rows);
  EXPECT_EQ(engine_->stats().scheduler.memory[kPageGroup].available, options_.scheduler.memory[kPageGroup]);
}

TEST_F(EngineRequests, AStopIdEndsTheText) {
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

// The ids that would end a text are not drawn before it is long enough, and not put off for one token alone.
TEST_F(EngineRequests, NothingEndsATextThatIsTooShort) {
  const auto expected = Undisturbed({Greedy(8)})[0];
  Start();
  Request r = Greedy(12);
  r.stop_ids = {expected[0]};
  r.min_new_tokens = 5;
  Runner runner(*engine_);
  runner.Add(r);
  stage_.ServeUntil([&] { return runner.done(); });
  const Outcome o = runner.Wait()[0];
  ASSERT_TRUE(o.finished) << o.status;
  ASSERT_GE(o.tokens.size(), 5u);
  EXPECT_EQ(std::count(o.tokens.begin(), o.tokens.begin() + 5, expected[0]), 0);
}

// Prompt and text together have no more tokens than the context.
TEST_F(EngineRequests, AContextIsNeverOverfull) {
  Start();
  for (const size_t prompt : {size_t{120}, size_t{126}, size_t{127}, size_t{128}}) {
    Request r = Greedy(1000);
    r.prompt.assign(prompt, 3);
    Runner runner(*engine_);
    runner.Add(r);
    stage_.ServeUntil([&] { return runner.done(); });
    const Outcome o = runner.Wait()[0];
    ASSERT_TRUE(o.finished) << o.status;
    EXPECT_EQ(o.reason, FinishReason::kLength) << prompt;
    EXPECT_EQ(prompt + o.tokens.size(), options_.context) << prompt;
  }
}

TEST_F(EngineRequests, WhoForbidsAllIdsIsRefused) {
  Start();
  Request r = Greedy(5);
  for (int id = 0; id < ScriptedStage::kVocab; ++id) {
    r.sampling.logit_bias.emplace_back(id, -std::numeric_limits<float>::infinity());
  }
  const Status refused = engine_->Submit(r, [](SeqId, const Event&) {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("logit_bias"));
}

TEST_F(EngineRequests, RequestsBeyondTheLimitsAreRefusedWithTheNumbers) {
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

TEST_F(EngineRequests, AHeldRequestStandsStillAndGoesOn) {
  const std::vector<Request> requests{Greedy(40), Greedy(12, 3, 20)};
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

TEST_F(EngineRequests, ARingOfAnotherSaltFindsNothingInTheCache) {
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

TEST_F(EngineRequests, TheListOfSequencesIsPublishedSoon) {
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

// A first stage that takes nothing in holds a Send up; the engine's end does not wait for it.
TEST_F(EngineRequests, StoppingDoesNotWaitForAStageThatTakesNothingIn) {
  options_.scheduler.max_rows = 8;
  Start();
  engine_->Resume(stage_.NewRing(0, 3, {.max_queued_frames = 1}));
  Runner runner(*engine_);
  runner.Add(Greedy(5, 60));
  stage_.Next();  // the next step takes its place, the third has none
  engine_.reset();
  for (const Outcome& o : runner.Wait()) EXPECT_TRUE(o.cancelled) << o.status;
}

// The stages of a new ring may be given up before the engine's thread has taken the ring up.
TEST_F(EngineRequests, ARingThatIsGivenUpAtOnceHoldsNothingUp) {
  options_.scheduler.max_rows = 8;
  Start();
  std::promise<void> began[2], go_on[2];
  const auto block = [&](int i) {
    engine_->Restore({}, [&, i](const UnitList&) {
      began[i].set_value();
      go_on[i].get_future().wait();
    });
  };
  block(0);
  began[0].get_future().wait();
  block(1);  // with what follows, one batch of commands
  Runner runner(*engine_);
  runner.Add(Greedy(5, 60));
  engine_->Resume(stage_.NewRing(0, 3, {.max_queued_frames = 1}));  // takes one step, and the second one waits
  go_on[0].set_value();
  began[1].get_future().wait();
  engine_->Await(Unavailable("a worker was lost"), false, false);
  go_on[1].set_value();
  auto checked = std::async(std::launch::async, [&] { return engine_->CheckIntegrity(); });
  EXPECT_EQ(checked.wait_for(seconds(60)), std::future_status::ready);
  stage_.CloseToFirst();
  EXPECT_TRUE(checked.get().ok());
}

// A loop that overlooks the moment waits for ever. Its first round is slow, so that the moment often falls into it.
TEST_F(EngineRequests, StoppingEndsTheLoopAtWhateverMomentItComes) {
  for (int i = 0; i < (testing::kSanitized ? 3000 : 10000); ++i) {
    auto engine = Engine::Start(options_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    (*engine)->Resume(stage_.NewRing());
    const Deadline moment = After(std::chrono::nanoseconds(i * 7919 % 60000));
    while (Clock::now() < moment) {
    }
  }
}

// Whatever escapes the engine's thread ends the process, which would otherwise look alive and answer nobody.
TEST_F(EngineRequests, AnExceptionOnTheEnginesThreadEndsTheProcessWithItsWords) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Start();
        Runner runner(*engine_);
        runner.Add(Greedy(3), [](SeqId, size_t) { throw std::runtime_error("the last words"); });
        stage_.ServeUntil([] { return false; });
      },
      "the engine's thread failed.*the last words");
}

}  // namespace
}  // namespace gyre
