// A ring that is lost with a member: sequences are put back and go on, and one that is shown to kill rings fails by
// itself. The ring is one that the test answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/testing/engine_rig.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::Runner;
using testing::ScriptedStage;

class EngineSurvive : public testing::EngineRig {
 protected:
  // The ring is lost with a member, and another comes.
  void LoseMember(const std::string& why = "worker w2 is gone") {
    stage_.CloseBoth();
    engine_->Await(Unavailable("{}", why), true);
    engine_->Resume(stage_.NewRing());
  }
  // Serves; a step that has a row at `position` of the request with the index `killer` kills the ring instead.
  // Returns how often that happened.
  int ServeWithKiller(Runner& runner, size_t killer, uint32_t position) {
    int kills = 0;
    ForEachFrame(runner, [&](const auto& r) {
      bool kills_it = false;
      for (const SeqRows& s : r.batch.seqs) {
        kills_it |=
            s.seq == runner.id(killer) && s.first_position <= position && position < s.first_position + s.row_count;
      }
      if (kills_it) {
        ++kills;
        LoseMember();
      } else {
        stage_.Answer(r);
      }
    });
    return kills;
  }
};

TEST_F(EngineSurvive, SequencesGoOnWithTheirTextsWhereverTheRingIsLost) {
  const std::vector<Request> requests{Greedy(8), Hot(8, 2), Greedy(8, 9, 30)};
  const auto expected = Undisturbed(requests);
  for (int steps = 0; steps < 12; ++steps) {
    Start();
    Runner runner(*engine_);
    for (const Request& r : requests) runner.Add(r);
    for (int i = 0; i < steps; ++i) {
      const auto r = stage_.Next();
      r.kind == FrameKind::kTokens ? stage_.Answer(r) : stage_.AnswerQuestion(r.question, stage_.LogitsOf(r.question));
    }
    Pass();
    LoseMember();
    ExpectTexts(runner, expected);
    EXPECT_EQ(engine_->stats().failed, 0u);
    for (const Outcome& o : runner.Wait()) {
      if (!o.waits.empty()) EXPECT_EQ(Message(o.waits[0]), "worker w2 is gone");
    }
    engine_.reset();
  }
}

// A replay computes the rows of the prompt as a prompt's, and the generated ones as such.
TEST_F(EngineSurvive, ReplayedRowsKeepTheirClasses) {
  Start();
  engine_->Resume(stage_.NewRing());
  Ring ring = stage_.NewRing();
  ring.prefill_matches_decode = false;
  engine_->Resume(ring);
  Runner runner(*engine_);
  runner.Add(Greedy(6, 5));
  for (int i = 0; i < 4; ++i) stage_.Answer(stage_.Next());
  Pass();
  stage_.CloseBoth();
  engine_->Await(Unavailable("gone"), true);
  ring = stage_.NewRing();
  ring.prefill_matches_decode = false;
  engine_->Resume(ring);
  uint32_t prompt_rows = 0, generated_rows = 0;
  for (int i = 0; i < 50 && !runner.done(); ++i) {
    const auto r = stage_.Poll(std::chrono::milliseconds(20));
    if (r.kind == FrameKind{}) continue;
    for (const SeqRows& s : r.batch.seqs) {
      for (uint32_t p = s.first_position; p < s.first_position + s.row_count; ++p) {
        EXPECT_EQ(s.row_class, p < 5 ? RowClass::kPrompt : RowClass::kGenerated) << p;
      }
      EXPECT_EQ(s.incarnation, 2u);
      (s.row_class == RowClass::kPrompt ? prompt_rows : generated_rows) += s.row_count;
    }
    stage_.Answer(r);
  }
  EXPECT_EQ(prompt_rows, 5u);
  EXPECT_EQ(generated_rows, 5u);
}

TEST_F(EngineSurvive, RequestsWaitForARingAndAreToldWhyOnce) {
  const std::vector<Request> requests{Greedy(5), Greedy(5, 3, 20)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  runner.Add(requests[0]);
  stage_.Answer(stage_.Next());
  engine_->Await(Unavailable("w2 is gone"), true);
  engine_->Await(Unavailable("w2 is gone"), true);
  Pass();
  runner.Add(requests[1]);  // it waits too
  engine_->Await(Unavailable("w2 is gone; w1 is too small"), true);
  Pass();
  EXPECT_FALSE(runner.done());
  now_ += Duration(seconds(30)).count();
  engine_->Resume(stage_.NewRing());
  ExpectTexts(runner, expected);
  const auto outcomes = runner.Wait();
  EXPECT_THAT(outcomes[0].waits, ElementsAre(Unavailable("w2 is gone"), Unavailable("w2 is gone; w1 is too small")));
  EXPECT_EQ(outcomes[1].waits, outcomes[0].waits);
  EXPECT_EQ(engine_->stats().rings_lost, 1u);
  EXPECT_EQ(engine_->stats().last_wait, Duration(seconds(30)));
}

TEST_F(EngineSurvive, ADeadlineEndsTheWait) {
  Start();
  Runner runner(*engine_);
  Request r = Greedy(5);
  r.deadline = Deadline(Duration(now_)) + seconds(10);
  runner.Add(r);
  stage_.Next();
  engine_->Await(Unavailable("gone"), true);
  Pass();
  now_ += Duration(seconds(11)).count();
  Pass();
  EXPECT_TRUE(absl::IsDeadlineExceeded(runner.Wait()[0].status)) << runner.Wait()[0].status;
}

// It kills at a row that comes only after others of it have landed again, so that landed rows alone prove nothing.
TEST_F(EngineSurvive, ARequestThatKillsFailsByItselfAfterThreeDeaths) {
  for (const uint32_t position : {0u, 2u, 4u, 7u}) {
    SCOPED_TRACE(position);
    const std::vector<Request> requests{Greedy(9), Greedy(9, 3, 20), Greedy(9, 3, 40)};
    const auto expected = Undisturbed(requests);
    Start();
    Runner runner(*engine_);
    AddTogether(runner, requests);
    EXPECT_EQ(ServeWithKiller(runner, 1, position), 3);
    const auto outcomes = runner.Wait();
    EXPECT_EQ(outcomes[0].tokens, expected[0]) << outcomes[0].status;
    EXPECT_EQ(outcomes[2].tokens, expected[2]) << outcomes[2].status;
    EXPECT_TRUE(absl::IsInvalidArgument(outcomes[1].status)) << outcomes[1].status;
    EXPECT_THAT(Message(outcomes[1].status), HasSubstr("the last time alone"));
    Pass();
    EXPECT_EQ(engine_->stats().poison_requests, 1u);
    EXPECT_EQ(engine_->stats().failed, 1u);
    engine_.reset();
  }
}

// The question about a row's logits is what kills; the row itself lands well each time.
TEST_F(EngineSurvive, ARequestWhoseQuestionKillsIsFoundToo) {
  Start();
  Runner runner(*engine_);
  runner.Add(Hot(5, 1));
  int kills = 0;
  ForEachFrame(runner, [&](const auto& r) {
    bool all = r.kind != FrameKind::kTokens;
    if (!all && !r.batch.seqs[0].requests.empty()) all = r.batch.seqs[0].requests[0].mode == RowMode::kFullLogits;
    if (all) {
      ++kills;
      LoseMember();
    } else {
      stage_.Answer(r);
    }
  });
  EXPECT_EQ(kills, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(runner.Wait()[0].status)) << runner.Wait()[0].status;
}

// A machine's loss is not the request's fault: nothing is counted, and the request never runs alone.
TEST_F(EngineSurvive, LossesThatAreNoCrashBlameNobody) {
  const std::vector<Request> requests{Greedy(6), Greedy(6, 3, 20)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  AddTogether(runner, requests);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(stage_.Next().batch.seqs.size(), 2u) << "both together";
    stage_.CloseBoth();
    engine_->Await(Unavailable("nothing was heard of w2"), false);
    engine_->Resume(stage_.NewRing());
  }
  ExpectTexts(runner, expected);
}

// Rows that have landed once are replayed together; only the next ones run alone.
TEST_F(EngineSurvive, SuspectsStopOthersForTheirNextRowsOnly) {
  const std::vector<Request> requests{Greedy(8), Greedy(8, 3, 20), Greedy(8, 3, 40)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  AddTogether(runner, requests);
  for (int i = 0; i < 3; ++i) stage_.Answer(stage_.Next());
  for (int loss = 0; loss < 2; ++loss) {
    const uint32_t lost_row = 5;
    for (auto r = stage_.Next(); r.batch.seqs[0].first_position + r.batch.seqs[0].row_count <= lost_row;
         r = stage_.Next()) {
      EXPECT_EQ(r.batch.seqs.size(), 3u) << "they are replayed together";
      stage_.Answer(r);
    }
    LoseMember();
  }
  int alone = 0;
  ForEachFrame(runner, [&](const auto& r) {
    alone += r.batch.seqs.size() == 1;
    stage_.Answer(r);
  });
  ExpectTexts(runner, expected);
  EXPECT_GE(alone, 3);
  EXPECT_LE(alone, 5) << "each for the row that was lost";
}

// A third death would be the coordinator's own.
TEST_F(EngineSurvive, SuspectsDoNotRunInTheCoordinatorsProcess) {
  const std::vector<Request> requests{Greedy(8), Greedy(8, 3, 20)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  runner.Add(requests[0]);
  for (int loss = 0; loss < 2; ++loss) {
    stage_.Next();
    stage_.CloseBoth();
    engine_->Await(Unavailable("gone"), true);
    if (loss == 0) engine_->Resume(stage_.NewRing());
  }
  runner.Add(requests[1]);
  Ring ring = stage_.NewRing();
  ring.own_member = true;
  engine_->Resume(ring);
  stage_.ServeUntil([&] { return runner.done(); });
  const auto outcomes = runner.Wait();
  EXPECT_THAT(Message(outcomes[0].status), HasSubstr("in the coordinator's own process"));
  EXPECT_EQ(outcomes[1].tokens, expected[1]) << outcomes[1].status;
}

// Members that die one after the other while a request gets on are not its fault.
TEST_F(EngineSurvive, ARequestThatGetsOnIsNeverBlamed) {
  const std::vector<Request> requests{Greedy(12)};
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  runner.Add(requests[0]);
  std::set<uint32_t> seen;
  ForEachFrame(runner, [&](const auto& r) {
    const uint32_t end = r.batch.seqs[0].first_position + r.batch.seqs[0].row_count;
    // Each row that is new is lost once.
    seen.insert(end).second ? LoseMember() : stage_.Answer(r);
  });
  EXPECT_EQ(runner.Wait()[0].tokens, expected[0]) << runner.Wait()[0].status;
  EXPECT_GE(engine_->stats().rings_lost, 10u);
}

}  // namespace
}  // namespace gyre
