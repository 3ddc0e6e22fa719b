// The coordinator's state in its folder: what is there after a crash at any time, and what is refused.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "base/files.h"
#include "coordinator/engine/request_codec.h"
#include "coordinator/service/event_stream.h"
#include "coordinator/state/response_store.h"
#include "coordinator/state/sqlite_store.h"
#include "coordinator/state/state_keeper.h"
#include "coordinator/state/term_file.h"
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
  static void Overwrite(const std::string& path, uint64_t offset, int bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    uint32_t random = 1;
    for (int i = 0; i < bytes; ++i) file.put(static_cast<char>((random = random * 1664525 + 1013904223) >> 24));
  }
  std::string folder_;
};

Request Ask(const std::string& id) {
  Request r;
  r.prompt = {1, 2, 3};
  r.max_new_tokens = 100;
  r.sampling.seed = 5;
  r.reattach_id = id;
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

// Whatever happens to files of the folder: the next term is higher, the id is the same, and each start succeeds.
TEST_F(StateTest, ATermNeverFalls) {
  const auto damages = std::vector<std::pair<const char*, std::function<void()>>>{
      {"no WAL", [&] { fs::remove(At("s/state.db-wal")); }},
      {"no WAL, and an old index of it",
       [&] {
         fs::remove(At("s/state.db-wal"));
         std::ofstream(At("s/state.db-shm")) << std::string(32768, 'x');
       }},
      {"random bytes at the WAL's beginning", [&] { Overwrite(At("s/state.db-wal"), 0, 256); }},
      {"random bytes in the WAL's first frame", [&] { Overwrite(At("s/state.db-wal"), 40, 256); }},
      {"random bytes in the WAL",
       [&] { Overwrite(At("s/state.db-wal"), fs::file_size(At("s/state.db-wal")) / 2, 256); }},
      {"half a WAL", [&] { fs::resize_file(At("s/state.db-wal"), fs::file_size(At("s/state.db-wal")) / 2); }},
      {"an empty WAL", [&] { fs::resize_file(At("s/state.db-wal"), 0); }},
      {"no database",
       [&] {
         fs::remove(At("s/state.db"));
         fs::remove(At("s/state.db-wal"));
       }},
      {"an old database",
       [&] {
         fs::copy_file(At("old.db"), At("s/state.db"), fs::copy_options::overwrite_existing);
         fs::remove(At("s/state.db-wal"));
       }},
      {"no term file", [&] { fs::remove(At("s/term")); }},
      {"a damaged term file", [&] { Overwrite(At("s/term"), 20, 4); }},
      {"an empty term file", [&] { fs::resize_file(At("s/term"), 0); }},
  };
  StoredState last;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Open("s", &last).ok());
    if (i == 0) fs::copy_file(At("s/state.db"), At("old.db"));
  }
  for (const auto& [what, act] : damages) {
    SCOPED_TRACE(what);
    act();
    StoredState found;
    const auto store = Open("s", &found);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_GT(found.term, last.term);
    EXPECT_EQ(found.cluster_id, last.cluster_id);
    last = found;
  }
  // An old copy of the whole folder: the clock is above it.
  StoredState found;
  ASSERT_TRUE(OpenSqliteStore(At("s"), 1'000'000, &found).ok());
  EXPECT_EQ(found.term, 1'000'000u);
}

// A WAL that is damaged in its middle: the start says so, and a copy stays.
TEST_F(StateTest, ADamagedLogIsKept) {
  {
    auto keeper = Keep("s");
    keeper->Begin(Ask("a-00"), 2, [] {});
    ASSERT_TRUE(keeper->Flush().ok());
  }
  const auto size = fs::file_size(At("s/state.db-wal"));
  StoredState found;
  { ASSERT_TRUE(Open("s", &found).ok()); }
  EXPECT_FALSE(fs::exists(At("s/state.db-wal.damaged"))) << "nothing is wrong";
  ASSERT_GT(size, 8000u);
  Overwrite(At("s/state.db-wal"), 60, 256);
  ::testing::internal::CaptureStderr();
  { ASSERT_TRUE(Open("s", &found).ok()); }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("it is damaged, so what was written last is lost"));
  EXPECT_TRUE(fs::exists(At("s/state.db-wal.damaged")));
  { ASSERT_TRUE(Open("s", &found).ok()); }
  EXPECT_TRUE(fs::exists(At("s/state.db-wal.damaged"))) << "a later start leaves the copy where it is";
}

// Runs a statement on a state that nobody uses.
void RunSql(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  char* message = nullptr;
  EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &message), SQLITE_OK) << message;
  sqlite3_close(db);
}

// SQLite does not notice changed bytes in a value. A request would go on with another text.
TEST_F(StateTest, ValuesThatChangedOnTheDiskAreFound) {
  StoredState found;
  {
    auto store = Open("s", &found);
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE((*store)
                    ->Write({.cluster = "the cluster",
                             .serving = "the settings",
                             .begun = {{"a-00", "the request"}},
                             .tokens = {{"a-00", 0, "the ids"}, {"a-00", 7, "further ones"}},
                             .cache = {{5, "the unit"}},
                             .responses = {{"r-00", "the response"}}})
                    .ok());
  }
  { ASSERT_TRUE(Open("s", &found).ok()); }  // everything is in the database now
  fs::remove(At("s/state.db-wal"));
  std::string whole;
  ASSERT_TRUE(fs::exists(At("s/state.db")));
  {
    std::ifstream file(At("s/state.db"), std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(file), {});
  }
  for (const std::string value : {"the cluster", "the settings", "the request", "the ids", "further ones", "the unit",
                                  "a-00", "serving", "the response", "r-00"}) {
    SCOPED_TRACE(value);
    std::string damaged = whole;
    size_t places = 0;
    for (size_t at = 0; (at = damaged.find(value, at)) != std::string::npos; ++places) damaged[at + 1] ^= 4;
    ASSERT_GT(places, 0u);
    Crash("s", "damaged");
    std::ofstream(At("damaged/state.db"), std::ios::binary) << damaged;
    const auto store = Open("damaged", &found);
    EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
    EXPECT_THAT(Message(store.status()), HasSubstr("the state is damaged"));
  }
  Crash("s", "other");
  RunSql(At("other/state.db"), "UPDATE token SET request = request + 1 WHERE first = 7");
  EXPECT_TRUE(absl::IsDataLoss(Open("other", &found).status())) << "ids of another request";
  Crash("s", "term");
  RunSql(At("term/state.db"), "UPDATE meta SET value = '99999999999999999999', sum = 1 WHERE key = 'term'");
  EXPECT_TRUE(absl::IsDataLoss(Open("term", &found).status())) << "no sum of it";
  // What an older Gyre wrote has no sums, and gets them.
  Crash("s", "older");
  for (const char* table : {"meta", "request", "token", "cache"}) {
    RunSql(At("older/state.db"), fmt::format("ALTER TABLE {} DROP COLUMN sum", table));
  }
  RunSql(At("older/state.db"), "DROP TABLE response");
  RunSql(At("older/state.db"), "PRAGMA user_version = 1");
  { ASSERT_TRUE(Open("older", &found).ok()); }
  found = {};
  const auto older = Open("older", &found);
  ASSERT_TRUE(older.ok()) << older.status();
  EXPECT_EQ(found.cluster, "the cluster");
  ASSERT_EQ(found.requests.size(), 1u);
  EXPECT_THAT(found.requests[0].tokens, ElementsAre("the ids", "further ones"));
  EXPECT_THAT(found.cache, ElementsAre("the unit"));
  EXPECT_TRUE(found.responses.empty());
  // The second schema had no responses.
  Crash("s", "second");
  RunSql(At("second/state.db"), "DROP TABLE response");
  RunSql(At("second/state.db"), "PRAGMA user_version = 2");
  found = {};
  {
    const auto second = Open("second", &found);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(found.requests.size(), 1u);
    EXPECT_TRUE(found.responses.empty());
    ASSERT_TRUE((*second)->Write({.responses = {{"r-01", "another"}}}).ok());
  }
  found = {};
  const auto third = Open("second", &found);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_THAT(found.responses, ElementsAre("another"));
}

// Wherever a bit of the database flips: what is read is what was written, or the start ends with a sentence.
TEST_F(StateTest, AFlippedBitNeverChangesWhatIsRead) {
  StoredState written;
  {
    auto store = Open("s", &written);
    ASSERT_TRUE(store.ok());
    StateBatch batch{.cluster = "the cluster", .serving = "the settings"};
    for (uint64_t i = 0; i < 40; ++i) {
      const std::string id = fmt::format("request-{}", i);
      batch.begun.push_back({id, "the request of " + id});
      batch.tokens.push_back({id, 0, "ids of " + id});
      batch.tokens.push_back({id, 9, "further ids of " + id});
      batch.cache.emplace_back(i, fmt::format("unit {}", i));
    }
    ASSERT_TRUE((*store)->Write(batch).ok());
  }
  written = {};
  { ASSERT_TRUE(Open("s", &written).ok()); }
  fs::remove(At("s/state.db-wal"));
  const auto rows = [](const StoredState& s) {
    std::set<std::string> out(s.cache.begin(), s.cache.end());
    out.insert({"cluster " + s.cluster, "serving " + s.serving, fmt::format("id {}", s.cluster_id)});
    for (const auto& r : s.requests) {
      for (size_t i = 0; i < r.tokens.size(); ++i)
        out.insert(fmt::format("{} {} {} {}", r.id, r.request, i, r.tokens[i]));
    }
    return out;
  };
  const auto size = static_cast<uint32_t>(fs::file_size(At("s/state.db")));
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 60; ++i) {
    Crash("s", "flipped");
    const uint32_t at = random() % size;
    {
      std::fstream file(At("flipped/state.db"), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const char byte = static_cast<char>(file.get() ^ (1 << random() % 8));
      file.seekp(at);
      file.put(byte);
    }
    StoredState found;
    if (!Open("flipped", &found).ok()) {
      ++refused;
      continue;
    }
    EXPECT_TRUE(rows(found) == rows(written)) << "byte " << at;
    EXPECT_GT(found.term, written.term);
  }
  EXPECT_GT(refused, 5);
}

TEST(TermFileTest, RoundTripsAndRefusesWhatIsDamaged) {
  const KeptTerm kept{.cluster_id = 12345678901234567890u, .term = 1764168000123};
  const std::string text = EncodeTerm(kept);
  EXPECT_EQ(DecodeTerm(text), kept);
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(DecodeTerm(text.substr(0, n))) << n;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char c : {'\0', '0', '9', 'x', '\n'}) {
      std::string wrong = text;
      wrong[i] = c;
      if (wrong != text) EXPECT_FALSE(DecodeTerm(wrong)) << i << " " << static_cast<int>(c);
    }
  }
  EXPECT_FALSE(DecodeTerm(text + "x"));
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
  const ClusterRecord plan{.stages = {{"w1", {0, 3}, "10.0.0.7:4000"}, {"local", {3, 6}, ""}},
                           .num_blocks = 77,
                           .on_workers = true,
                           .drained = {"w2", "w9"}};
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
  const auto request = keeper->Reattach("a-00", 0, keeper->NewReader());
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
    .place = {kSlotGroup, 7}, .step = 9, .chain = 3, .tokens = {}, .classes = {}, .snapshot = 4, .evict_first = true};

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

TEST_F(StateTest, ResponsesComeBack) {
  {
    auto keeper = Keep("s");
    ResponseStore store({}, keeper.get());
    store.Keep({.id = "a", .tenant = 7, .input = R"(["a"])", .response = "{}", .created = UnixSeconds()});
    store.Keep({.id = "b", .tenant = 7, .previous = "a", .input = "[]", .response = "{}", .created = UnixSeconds()});
    store.Keep({.id = "gone", .tenant = 7, .input = "[]", .response = "{}", .created = UnixSeconds()});
    ASSERT_TRUE(keeper->Flush().ok());
    ASSERT_TRUE(store.Delete("a", 7).ok());
    ASSERT_TRUE(store.Delete("gone", 7).ok());
    ASSERT_TRUE(keeper->Flush().ok());
    Crash("s", "c");
  }
  auto keeper = Keep("c");
  ResponseStore store({}, keeper.get());
  const auto conversation = store.Conversation("b", 7);
  ASSERT_TRUE(conversation.ok()) << conversation.status();
  ASSERT_EQ(conversation->size(), 2u);
  EXPECT_EQ(conversation->front().input, R"(["a"])");
  EXPECT_FALSE(store.Find("a", 7).ok()) << "deleted";
  EXPECT_FALSE(store.Find("gone", 7).ok());
  EXPECT_FALSE(store.Find("b", 8).ok()) << "another's";
  // A value that changed is found, as everywhere.
  keeper.reset();
  {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(At("c/state.db").c_str(), &db), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(db, "UPDATE response SET response = x'00'", nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
  }
  StoredState found;
  EXPECT_TRUE(absl::IsDataLoss(Open("c", &found).status()));
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
  for (int i = 0; i < kOpen; ++i) EXPECT_TRUE(keeper->Reattach(open_id(i), 0, keeper->NewReader()).ok()) << i;
  for (int i = 0; i < kEnded; ++i) {
    const auto request = keeper->Reattach(ended_id(i), 0, keeper->NewReader());
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
  EXPECT_THAT(IdsOf(*Keep("c")->Reattach("meanwhile", 0, 1)), ElementsAre(4));
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
  auto second = streams_->Reattach("a-0", 0, {});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(IdsOf(engine_.requests()[1]), ElementsAre(7));
  const auto told = (*first)->TryNext();
  ASSERT_TRUE(told);
  EXPECT_THAT(Message(std::get<Failed>(*told).status), HasSubstr("reattached by another connection"));
  first->reset();
  // The second one's end leaves it to a third.
  engine_.Send(2, TokenEvent{.token = 7});
  engine_.Send(2, TokenEvent{.token = 8});
  second->reset();
  auto third = streams_->Reattach("a-0", 0, {});
  ASSERT_TRUE(third.ok());
  EXPECT_THAT(IdsOf(engine_.requests()[2]), ElementsAre(7, 8));
  EXPECT_TRUE(absl::IsNotFound(streams_->Reattach("a-1", 0, {}).status()));
  EXPECT_TRUE(absl::IsNotFound(streams_->Reattach("a-0", 3, {}).status()));
}

TEST_F(KeptStreamTest, ARefusedRequestIsNotKeptAndAReattachedOneIs) {
  engine_.refusal = Unavailable("no ring");
  EXPECT_FALSE(streams_->Submit(Ask("a-0"), {}).ok());
  EXPECT_EQ(keeper_->open_requests(), 0u);
  engine_.refusal = absl::OkStatus();
  ASSERT_TRUE(streams_->Submit(Ask("b-0"), {}).ok());  // and its reader goes
  engine_.refusal = ResourceExhausted("the queue is full");
  EXPECT_FALSE(streams_->Reattach("b-0", 0, {}).ok());
  engine_.refusal = absl::OkStatus();
  EXPECT_TRUE(streams_->Reattach("b-0", 0, {}).ok());
}

}  // namespace
}  // namespace gyre
