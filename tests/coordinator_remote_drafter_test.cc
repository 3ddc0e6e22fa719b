// A drafter in another process: what it is asked, and what becomes of questions that it does not answer.
#include "coordinator/engine/remote_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "base/mutex.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<TokenId>;

class RemoteDrafterTest : public ::testing::Test {
 protected:
  struct Question {
    uint64_t number;
    DraftQuestion question;
    std::vector<SeqId> ended;
  };
  // The other end of a worker's stream.
  struct Worker {
    uint64_t number = 0;
    std::vector<Question> asked;
    Status end;  // why it was displaced
  };
  // What came of a question.
  struct Waiting {
    std::optional<Tokens> Within(Duration most) {
      MutexLock lock(&mutex);
      const Deadline until = After(most);
      while (!answer && changed.WaitUntil(&mutex, until)) {
      }
      return answer;
    }
    Mutex mutex;
    CondVar changed;
    std::optional<Tokens> answer;
  };

  void Start(Duration patience = seconds(30)) {
    auto drafter = RemoteDrafter::Start(patience);
    ASSERT_TRUE(drafter.ok()) << drafter.status();
    drafter_ = *std::move(drafter);
  }
  Status Attach(Worker* worker, const std::string& name = "w") {
    auto number = drafter_->Attach({.name = name,
                                    .ask =
                                        [worker](uint64_t n, DraftQuestion q, std::vector<SeqId> ended) {
                                          worker->asked.push_back({n, std::move(q), std::move(ended)});
                                        },
                                    .displaced = [worker](const Status& why) { worker->end = why; },
                                    .accepted = {}});
    if (number.ok()) worker->number = *number;
    return number.status();
  }
  std::shared_ptr<Waiting> Ask(uint64_t seq, size_t first, Tokens tokens, uint32_t most = 4) {
    auto waiting = std::make_shared<Waiting>();
    drafter_->Draft(
        {.seq = SeqId{seq}, .first = first, .tokens = std::move(tokens), .prompt = 2, .most = most, .sampling = {}},
        [waiting](Tokens drafts) {
          MutexLock lock(&waiting->mutex);
          waiting->answer = std::move(drafts);
          waiting->changed.SignalAll();
        });
    return waiting;
  }
  std::shared_ptr<RemoteDrafter> drafter_;
};

TEST_F(RemoteDrafterTest, AnswersComeFromTheWorker) {
  Start();
  EXPECT_FALSE(drafter_->ready());
  EXPECT_THAT(Ask(7, 0, {1, 2, 3})->Within({}), ::testing::Optional(IsEmpty()));
  Worker worker;
  ASSERT_TRUE(Attach(&worker).ok());
  EXPECT_TRUE(drafter_->ready());
  // It comes after the text's beginning, and gets it whole; then what is new.
  const auto first = Ask(7, 3, {4});
  const auto second = Ask(7, 4, {5, 6}, 2);
  ASSERT_EQ(worker.asked.size(), 2u);
  EXPECT_EQ(worker.asked[0].question.first, 0u);
  EXPECT_THAT(worker.asked[0].question.tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(worker.asked[1].question.first, 4u);
  EXPECT_THAT(worker.asked[1].question.tokens, ElementsAre(5, 6));
  EXPECT_EQ(drafter_->each().count(), 0);
  drafter_->Answer(worker.number, worker.asked[1].number, {9, 8, 7});
  EXPECT_THAT(second->Within({}), ::testing::Optional(ElementsAre(9, 8)));  // as many as were asked for
  EXPECT_FALSE(first->Within({}).has_value());
  drafter_->Answer(worker.number, worker.asked[0].number, {5});
  EXPECT_THAT(first->Within({}), ::testing::Optional(ElementsAre(5)));
  EXPECT_GT(drafter_->each().count(), 0);
  // Nobody waits for these.
  drafter_->Answer(worker.number, worker.asked[0].number, {5});
  drafter_->Answer(worker.number, 12345, {5});
  drafter_->Answer(worker.number + 1, worker.asked[0].number, {5});
  drafter_->End(SeqId{7});
  Ask(8, 0, {1});
  EXPECT_THAT(worker.asked.back().ended, ElementsAre(SeqId{7}));
}

TEST_F(RemoteDrafterTest, AStreamThatEndsOwesNothing) {
  Start();
  Worker worker, next;
  ASSERT_TRUE(Attach(&worker).ok());
  const auto waiting = Ask(1, 0, {1, 2});
  drafter_->Detach(worker.number);
  EXPECT_THAT(waiting->Within({}), ::testing::Optional(IsEmpty()));
  EXPECT_FALSE(drafter_->ready());
  EXPECT_THAT(Ask(1, 2, {3})->Within({}), ::testing::Optional(IsEmpty()));
  ASSERT_TRUE(Attach(&next).ok());
  Ask(1, 3, {4});
  ASSERT_EQ(next.asked.size(), 1u);
  EXPECT_THAT(next.asked[0].question.tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(worker.asked.size(), 1u);
  // The end of the stream before comes late.
  drafter_->Detach(worker.number);
  EXPECT_TRUE(drafter_->ready());
}

TEST_F(RemoteDrafterTest, ALateWorkerIsNotWaitedFor) {
  Start(milliseconds(20));
  Worker worker;
  ASSERT_TRUE(Attach(&worker).ok());
  const auto waiting = Ask(1, 0, {1});
  EXPECT_THAT(waiting->Within(seconds(20)), ::testing::Optional(IsEmpty()));
  EXPECT_FALSE(drafter_->ready());
  EXPECT_THAT(Ask(1, 1, {2})->Within({}), ::testing::Optional(IsEmpty()));
  EXPECT_EQ(worker.asked.size(), 1u);
  // Its answer says that it is there again.
  drafter_->Answer(worker.number, worker.asked[0].number, {5});
  EXPECT_TRUE(drafter_->ready());
  Ask(1, 2, {3});
  ASSERT_EQ(worker.asked.size(), 2u);
}

TEST_F(RemoteDrafterTest, OnlyALateWorkerGivesWayToAnother) {
  Start(milliseconds(20));
  Worker worker, next, same;
  ASSERT_TRUE(Attach(&worker, "first").ok());
  EXPECT_TRUE(drafter_->CheckAttach("first").ok());
  const Status refused = Attach(&next, "second");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_EQ(Message(refused), "first drafts for this coordinator already");
  const auto waiting = Ask(1, 0, {1});
  EXPECT_TRUE(waiting->Within(seconds(20)).has_value());
  ASSERT_TRUE(Attach(&next, "second").ok());
  EXPECT_TRUE(drafter_->ready());
  drafter_->Answer(worker.number, worker.asked[0].number, {5});
  Ask(1, 1, {2});
  EXPECT_EQ(next.asked.size(), 1u);
  EXPECT_EQ(Message(worker.end), "it was late, and second drafts now");
  EXPECT_TRUE(absl::IsUnavailable(worker.end));
  // The same one may come back before its end was noticed.
  ASSERT_TRUE(Attach(&same, "second").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(next.end)) << next.end;
  EXPECT_TRUE(drafter_->ready());
}

TEST_F(RemoteDrafterTest, NothingIsAnsweredAfterItsEnd) {
  Start(milliseconds(20));
  Worker worker;
  ASSERT_TRUE(Attach(&worker).ok());
  const auto waiting = Ask(1, 0, {1});
  drafter_->Stop();
  drafter_->Answer(worker.number, worker.asked[0].number, {5});
  drafter_->Detach(worker.number);
  EXPECT_FALSE(waiting->Within(milliseconds(60)).has_value());
  EXPECT_TRUE(absl::IsUnavailable(Attach(&worker)));
}

}  // namespace
}  // namespace gyre
