// The coordinator's state in its folder: what is there after a crash at any time, and what is refused.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "base/files.h"
#include "coordinator/event_stream.h"
#include "coordinator/request_codec.h"
#include "coordinator/sqlite_store.h"
#include "coordinator/state_keeper.h"
#include "tests/testing/fake_engine.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using testing::FakeEngine;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

class StateTest : public ::testing::Test {
 protected:
  StateTest() {
    char name[] = "/tmp/gyre-state-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~StateTest() override { fs::remove_all(folder_); }

  std::string At(const std::string& name) const { return folder_ + "/" + name; }
  StatusOr<std::unique_ptr<StateStore>> Open(const std::string& name, StoredState* found) {
    return OpenSqliteStore(At(name), 100, found);
  }
  std::unique_ptr<StateKeeper> Keep(const std::string& name, const KeeperOptions& options = {}) {
    StoredState found;
    auto store = Open(name, &found);
    EXPECT_TRUE(store.ok()) << store.status();
    auto keeper = StateKeeper::Start(*std::move(store), found, options);
    EXPECT_TRUE(keeper.ok()) << keeper.status();
    return *std::move(keeper);
  }
  // Copies the files that a process would leave if it were killed now.
  void Crash(const std::string& from, const std::string& to) {
    fs::remove_all(At(to));
    fs::copy(At(from), At(to), fs::copy_options::recursive);
  }
  std::string folder_;
};

Request Ask(const std::string& id) {
  Request r;
  r.prompt = {1, 2, 3};
  r.max_new_tokens = 100;
  r.sampling.seed = 5;
  r.take_up_id = id;
  return r;
}
std::vector<TokenId> IdsOf(const Request& r) {
  std::vector<TokenId> ids;
  for (const TokenEvent& t : r.generated) ids.push_back(t.token);
  return ids;
}

TEST_F(StateTest, EachStartRaisesTheTermAndKeepsTheId) {
  StoredState first, second, third;
  { ASSERT_TRUE(Open("s", &first).ok()); }
  { ASSERT_TRUE(Open("s", &second).ok()); }
  EXPECT_EQ(first.term, 100u);
  EXPECT_EQ(second.term, 101u);
  EXPECT_NE(first.cluster_id, 0u);
  EXPECT_EQ(second.cluster_id, first.cluster_id);
  { ASSERT_TRUE(Open("other", &third).ok()); }
  EXPECT_NE(third.cluster_id, first.cluster_id);
  // Prompts are nobody else's business.
  EXPECT_EQ(fs::status(At("s")).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(At("s/state.db")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(StateTest, TwoProcessesCantHaveOneFolder) {
  StoredState found;
  const auto store = Open("s", &found);
  ASSERT_TRUE(store.ok());
  const auto second = Open("s", &found);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(Message(second.status()), HasSubstr("another coordinator that is running keeps its state there"));
}

TEST_F(StateTest, ADamagedDatabaseIsRefusedAndLeftAsItIs) {
  {
    auto keeper = Keep("s");
    for (int i = 0; i < 200; ++i) {
      Request r = Ask("r" + std::to_string(i));
      r.prompt.resize(20000, 300);
      keeper->Begin(r, keeper->NewReader(), [] {});
    }
    ASSERT_TRUE(keeper->Flush().ok());
  }
  // So much of it has reached the database itself.
  fs::remove(At("s/state.db-wal"));
  {
    StoredState found;
    Crash("s", "whole");
    ASSERT_TRUE(Open("whole", &found).ok());
  }
  ASSERT_GT(fs::file_size(At("s/state.db")), 100000u);
  for (const char* damage : {"header", "page"}) {
    Crash("s", "damaged");
    {
      std::fstream file(At("damaged/state.db"), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(std::string(damage) == "header" ? 0 : 4096);
      file.write("damage damage damage damage", 27);
    }
    std::string before, after;
    std::getline(std::ifstream(At("damaged/state.db"), std::ios::binary), before, '\xfe');
    StoredState found;
    const auto store = Open("damaged", &found);
    EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
    EXPECT_THAT(Message(store.status()), HasSubstr("damaged"));
    std::getline(std::ifstream(At("damaged/state.db"), std::ios::binary), after, '\xfe');
    EXPECT_EQ(before, after);
  }
}

TEST_F(StateTest, WhatIsNoStateIsRefused) {
  fs::create_directories(At("text"));
  std::ofstream(At("text/state.db")) << "This is no database, whatever its name says. " << std::string(2000, 'x');
  StoredState found;
  EXPECT_TRUE(absl::IsDataLoss(Open("text", &found).status()));
  std::ofstream(At("file")) << "x";
  EXPECT_FALSE(Open("file", &found).ok());
}

// The header of SQLite's write-ahead log (https://sqlite.org/walformat.html); "" where there is none.
std::string HeadOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(32, '\0');
  file.read(head.data(), 32);
  head.resize(static_cast<size_t>(file.gcount()));
  return head;
}

// Killed at any moment: requests that were said to be durable are there, with a beginning of their ids in order.
TEST_F(StateTest, ACrashAtAnyTimeLosesNothingDurable) {
  std::atomic<int> durable{0};
  std::atomic<bool> stop{false};
  auto keeper = Keep("s");
  std::thread writer([&] {
    for (int i = 0; !stop && i < 400; ++i) {
      const std::string id = "r" + std::to_string(i);
      const uint64_t reader = keeper->NewReader();
      keeper->Begin(Ask(id), reader, [&] { ++durable; });
      for (TokenId t = 0; t < 50; ++t) keeper->OnEvent(id, reader, TokenEvent{.token = t});
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  for (int crash = 0; crash < 12; ++crash) {
    const int before = durable;
    // Not at one moment as a crash is, so the log is copied last, and all again if it began anew meanwhile (its header
    // changes then): until that it has everything that may be missing in the copy of the database.
    std::string log;
    do {
      log = HeadOf(At("s/state.db-wal"));
      fs::remove_all(At("c"));
      fs::create_directories(At("c"));
      fs::copy(At("s/state.db"), At("c/state.db"));
      if (fs::exists(At("s/state.db-wal"))) fs::copy(At("s/state.db-wal"), At("c/state.db-wal"));
    } while (HeadOf(At("c/state.db-wal")) != log);
    StoredState found;
    const auto store = Open("c", &found);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_GE(static_cast<int>(found.requests.size()), before);
    for (const auto& r : found.requests) {
      std::vector<TokenEvent> tokens;
      for (const std::string& t : r.tokens) ASSERT_TRUE(DecodeTokens(t, &tokens).ok());
      for (size_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(tokens[i].token, static_cast<TokenId>(i));
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  stop = true;
  writer.join();
}

// The end of the log was not written.
TEST_F(StateTest, ATornLogLosesItsEndOnly) {
  {
    auto keeper = Keep("s");
    for (int i = 0; i < 20; ++i) {
      keeper->Begin(Ask("r" + std::to_string(i)), keeper->NewReader(), [] {});
      ASSERT_TRUE(keeper->Flush().ok());
    }
    Crash("s", "c");
  }
  const auto whole = fs::file_size(At("c/state.db-wal"));
  ASSERT_GT(whole, 10000u);
  size_t last = 21;
  for (uint64_t cut = 0; cut <= 10; ++cut) {
    Crash("c", "torn");
    fs::resize_file(At("torn/state.db-wal"), whole - whole * cut / 10);
    if (cut == 5) {  // and garbage in place of it
      std::ofstream(At("torn/state.db-wal"), std::ios::binary | std::ios::app) << std::string(8192, '\x5a');
    }
    StoredState found;
    const auto store = Open("torn", &found);
    ASSERT_TRUE(store.ok()) << cut << ": " << store.status();
    EXPECT_LE(found.requests.size(), last);
    last = found.requests.size();
    for (size_t i = 0; i < found.requests.size(); ++i) EXPECT_EQ(found.requests[i].id, "r" + std::to_string(i));
  }
}

TEST_F(StateTest, APlanARequestAndItsIdsComeBack) {
  const ClusterRecord plan{
      .stages = {{"w1", {0, 3}}, {"local", {3, 6}}}, .num_blocks = 77, .on_workers = true, .drained = {"w2", "w9"}};
  const ServingRecord serving{.model_hash = 0xfeedfacecafebeef, .context = 512, .num_blocks = 80, .block_size = 16};
  {
    auto keeper = Keep("s");
    keeper->Serve(serving);
    keeper->Record(plan);
    keeper->Begin(Ask("gone"), 1, [] {});
    keeper->Begin(Ask("a-00"), 2, [] {});
    keeper->OnEvent("a-00", 2, TokenEvent{.token = 10});
    ASSERT_TRUE(keeper->Flush().ok());
    keeper->OnEvent("a-00", 2, TokenEvent{.token = 11});
    keeper->OnEvent("gone", 1, Failed{InvalidArgument("nonsense")});
    ASSERT_TRUE(keeper->Flush().ok());
    Crash("s", "c");
  }
  auto keeper = Keep("c");
  EXPECT_EQ(keeper->term(), 101u);
  EXPECT_EQ(keeper->cluster(), plan);
  EXPECT_EQ(keeper->serving(), serving);
  EXPECT_EQ(keeper->open_requests(), 1u);
  const auto request = keeper->TakeUp("a-00", 0, keeper->NewReader());
  ASSERT_TRUE(request.ok());
  EXPECT_THAT(IdsOf(*request), ElementsAre(10, 11));
  EXPECT_EQ(request->sampling.seed, 5u);
  EXPECT_EQ(request->id, "a");
  // Another model has other ids.
  ServingRecord other = serving;
  other.model_hash = 1;
  keeper.reset();
  keeper = Keep("c");
  keeper->Serve(other);
  EXPECT_EQ(keeper->open_requests(), 0u);
  EXPECT_FALSE(keeper->cluster());
}

CachedUnit Unit(uint32_t number, uint64_t chain) {
  return {.place = {kPageGroup, number},
          .step = 70 + chain,
          .chain = chain,
          .parent = chain - 1,
          .salt = 0xfeedfacecafebeef,
          .tokens = {5, 0, 99999},
          .classes = {RowClass::kPrompt, RowClass::kPrompt, RowClass::kGenerated}};
}
const CachedUnit kSnapshot{
    .place = {kSlotGroup, 7}, .step = 9, .chain = 3, .tokens = {}, .classes = {}, .snapshot = 4, .passing = true};

TEST_F(StateTest, TheIndexOfTheCacheComesBack) {
  {
    auto keeper = Keep("s");
    EXPECT_TRUE(keeper->cache().units.empty());
    keeper->Keep(
        {.generation = 3,
         .changes = {{{kPageGroup, 1}, Unit(1, 10)}, {{kPageGroup, 2}, Unit(2, 11)}, {{kSlotGroup, 7}, kSnapshot}}});
    keeper->Keep({.generation = 3, .changes = {{{kPageGroup, 2}, std::nullopt}, {{kPageGroup, 1}, Unit(1, 12)}}});
    ASSERT_TRUE(keeper->Flush().ok());
    keeper->Keep({.generation = 3, .changes = {{{kPageGroup, 4}, Unit(4, 13)}}});
    ASSERT_TRUE(keeper->Flush().ok());
    Crash("s", "c");
  }
  EXPECT_EQ(Keep("c")->cache().generation, 3u);
  EXPECT_THAT(Keep("c")->cache().units, UnorderedElementsAre(Unit(1, 12), Unit(4, 13), kSnapshot));
}

// The chains of another scheduler mean something else.
TEST_F(StateTest, AnotherGenerationTakesThePlaceOfTheIndex) {
  {
    auto keeper = Keep("s", {.units_at_once = 1});
    keeper->Keep({.generation = 3, .changes = {{{kPageGroup, 1}, Unit(1, 10)}, {{kPageGroup, 2}, Unit(2, 11)}}});
    ASSERT_TRUE(keeper->Flush().ok());
    keeper->Keep({.generation = 4, .changes = {{{kPageGroup, 2}, Unit(2, 1)}}});
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(keeper->Flush().ok());
    Crash("s", "c");
  }
  EXPECT_EQ(Keep("c")->cache().generation, 4u);
  EXPECT_THAT(Keep("c")->cache().units, ElementsAre(Unit(2, 1)));
}

// More requests are stored than are kept without a reader.
TEST_F(StateTest, AfterARestartRequestsUnderWayAreKeptBeforeEndedOnes) {
  constexpr int kOpen = 20, kEnded = 30;
  const auto open_id = [](int i) { return fmt::format("open{}-{}", i, (i * 7) % kOpen); };
  const auto ended_id = [](int i) { return fmt::format("ended{}-{}", i, (i * 7) % kEnded); };
  {
    auto keeper = Keep("s");
    for (int i = 0; i < kEnded; ++i) {
      const uint64_t reader = keeper->NewReader();
      if (i < kOpen) keeper->Begin(Ask(open_id(i)), keeper->NewReader(), [] {});
      keeper->Begin(Ask(ended_id(i)), reader, [] {});
      keeper->OnEvent(ended_id(i), reader, TokenEvent{.token = i});
      keeper->OnEvent(ended_id(i), reader, Finished{});
      keeper->Leave(ended_id(i), reader);
    }
    ASSERT_TRUE(keeper->Flush().ok());
    Crash("s", "c");
  }
  const auto keeper = Keep("c", {.requests = {.unattended = 3}});
  EXPECT_EQ(keeper->open_requests(), kOpen + 3u);
  for (int i = 0; i < kOpen; ++i) EXPECT_TRUE(keeper->TakeUp(open_id(i), 0, keeper->NewReader()).ok()) << i;
  for (int i = 0; i < kEnded; ++i) {
    const auto request = keeper->TakeUp(ended_id(i), 0, keeper->NewReader());
    EXPECT_EQ(request.ok(), i >= kEnded - 3) << i;
    if (request.ok()) EXPECT_THAT(IdsOf(*request), ElementsAre(i));
  }
}

// A store that fails and works again.
class FailingStore : public StateStore {
 public:
  explicit FailingStore(std::unique_ptr<StateStore> store) : store_(std::move(store)) {}
  Status Write(const StateBatch& batch) override {
    if (replaced) return absl::AbortedError("another coordinator leads");
    return failing ? ResourceExhausted("the disk is full") : store_->Write(batch);
  }
  std::atomic<bool> failing{false}, replaced{false};

 private:
  const std::unique_ptr<StateStore> store_;
};

TEST_F(StateTest, AFullDiskStopsNobodyAndIsMadeUpForLater) {
  StoredState found;
  auto store = Open("s", &found);
  ASSERT_TRUE(store.ok());
  auto failing = std::make_unique<FailingStore>(*std::move(store));
  FailingStore& f = *failing;
  auto keeper = StateKeeper::Start(std::move(failing), found, {});
  ASSERT_TRUE(keeper.ok());
  (*keeper)->Begin(Ask("before"), 1, [] {});
  ASSERT_TRUE((*keeper)->Flush().ok());
  f.failing = true;
  std::atomic<bool> told{false};
  (*keeper)->Begin(Ask("meanwhile"), 2, [&] { told = true; });
  EXPECT_FALSE((*keeper)->Flush().ok());
  EXPECT_TRUE(told);
  (*keeper)->OnEvent("meanwhile", 2, TokenEvent{.token = 4});
  (*keeper)->Keep({.generation = 3, .changes = {{{kPageGroup, 4}, Unit(4, 13)}}});
  EXPECT_FALSE((*keeper)->Flush().ok());
  (*keeper)->Forget("before", 1);
  f.failing = false;
  for (int i = 0; i < 400 && !(*keeper)->Flush().ok(); ++i) std::this_thread::sleep_for(milliseconds(10));
  Crash("s", "c");
  EXPECT_THAT(IdsOf(*Keep("c")->TakeUp("meanwhile", 0, 1)), ElementsAre(4));
  EXPECT_THAT(Keep("c")->cache().units, ElementsAre(Unit(4, 13)));
}

// Nobody hears that a request is kept, and nobody waits for it either.
TEST_F(StateTest, AFlushEndsWhenAnotherCoordinatorLeads) {
  StoredState found;
  auto store = Open("s", &found);
  ASSERT_TRUE(store.ok());
  auto failing = std::make_unique<FailingStore>(*std::move(store));
  failing->replaced = true;
  auto keeper = StateKeeper::Start(std::move(failing), found, {});
  ASSERT_TRUE(keeper.ok());
  std::atomic<bool> told{false};
  for (const char* id : {"a", "b"}) {
    (*keeper)->Begin(Ask(id), 1, [&] { told = true; });
    auto flushed = std::async(std::launch::async, [&] { return (*keeper)->Flush(); });
    ASSERT_EQ(flushed.wait_for(std::chrono::seconds(60)), std::future_status::ready);
    EXPECT_TRUE(absl::IsAborted(flushed.get()));
  }
  EXPECT_FALSE(told);
}

// Streams over a keeper.
class KeptStreamTest : public StateTest {
 protected:
  void SetUp() override {
    keeper_ = Keep("s");
    streams_ = std::make_unique<EventStreams>(engine_.Calls(), StreamLimits{}, keeper_.get());
  }
  FakeEngine engine_;
  std::unique_ptr<StateKeeper> keeper_;
  std::unique_ptr<EventStreams> streams_;
};

TEST_F(KeptStreamTest, NothingIsReadBeforeTheRequestIsStored) {
  auto stream = streams_->Submit(Ask("a-0"), {});
  ASSERT_TRUE(stream.ok());
  engine_.Send(1, TokenEvent{.token = 7});
  const auto event = (*stream)->Next(After(std::chrono::seconds(5)));
  ASSERT_TRUE(event);
  Crash("s", "c");
  EXPECT_EQ(Keep("c")->open_requests(), 1u);
}

TEST_F(KeptStreamTest, WhoComesBackGoesOnAndTheOtherIsTold) {
  auto first = streams_->Submit(Ask("a-0"), {});
  ASSERT_TRUE(first.ok());
  engine_.Send(1, TokenEvent{.token = 7});
  ASSERT_TRUE((*first)->Next(After(std::chrono::seconds(5))));
  auto second = streams_->TakeUp("a-0", 0, {});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(IdsOf(engine_.requests()[1]), ElementsAre(7));
  const auto told = (*first)->TryNext();
  ASSERT_TRUE(told);
  EXPECT_THAT(Message(std::get<Failed>(*told).status), HasSubstr("taken up by another connection"));
  first->reset();
  // The second one's end leaves it to a third.
  engine_.Send(2, TokenEvent{.token = 7});
  engine_.Send(2, TokenEvent{.token = 8});
  second->reset();
  auto third = streams_->TakeUp("a-0", 0, {});
  ASSERT_TRUE(third.ok());
  EXPECT_THAT(IdsOf(engine_.requests()[2]), ElementsAre(7, 8));
  EXPECT_TRUE(absl::IsNotFound(streams_->TakeUp("a-1", 0, {}).status()));
  EXPECT_TRUE(absl::IsNotFound(streams_->TakeUp("a-0", 3, {}).status()));
}

TEST_F(KeptStreamTest, ARefusedRequestIsNotKeptAndATakenUpOneIs) {
  engine_.refusal = Unavailable("no ring");
  EXPECT_FALSE(streams_->Submit(Ask("a-0"), {}).ok());
  EXPECT_EQ(keeper_->open_requests(), 0u);
  engine_.refusal = absl::OkStatus();
  ASSERT_TRUE(streams_->Submit(Ask("b-0"), {}).ok());  // and its reader goes
  engine_.refusal = ResourceExhausted("the queue is full");
  EXPECT_FALSE(streams_->TakeUp("b-0", 0, {}).ok());
  engine_.refusal = absl::OkStatus();
  EXPECT_TRUE(streams_->TakeUp("b-0", 0, {}).ok());
}

}  // namespace
}  // namespace gyre
