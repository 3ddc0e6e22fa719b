// Requests that can be reattached, as lists of events: what is drawn, who reads, what is to be written.
#include "coordinator/state/request_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "coordinator/engine/request_codec.h"
#include "tests/testing/worlds.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Deadline At(int s) { return Deadline(seconds(s)); }

Request Ask(const std::string& id, uint64_t tenant = 0) {
  Request r;
  r.prompt = {1, 2, 3};
  r.max_new_tokens = 9;
  r.reattach_id = id;
  r.tenant = tenant;
  return r;
}
TokenEvent Token(TokenId id) { return {.token = id, .probability = 0.5f, .text = "text"}; }
std::vector<TokenId> IdsOf(const std::vector<TokenEvent>& tokens) {
  std::vector<TokenId> ids;
  for (const TokenEvent& t : tokens) ids.push_back(t.token);
  return ids;
}

// The contents of a store that got every change.
struct Replica {
  std::map<std::string, std::vector<TokenId>> requests;
  void Apply(const RequestJournal::Changes& changes) {
    for (const std::string& id : changes.gone) EXPECT_EQ(requests.erase(id), 1u) << id;
    for (const auto& r : changes.begun) EXPECT_TRUE(requests.try_emplace(r->reattach_id).second);
    for (const auto& t : changes.tokens) {
      auto& ids = requests.at(t.id);
      EXPECT_EQ(ids.size(), t.first);
      for (const TokenEvent& token : t.tokens) ids.push_back(token.token);
    }
  }
};

TEST(RequestJournalTest, WhoTakesARequestUpGetsAllThatWasDrawn) {
  RequestJournal book({});
  book.Begin(Ask("a"), 1);
  book.OnToken("a", 1, Token(10));
  book.OnToken("a", 1, Token(11));
  book.Leave("a", 1, At(0));
  const StatusOr<Request> again = book.Reattach("a", 0, 2);
  ASSERT_TRUE(again.ok());
  EXPECT_THAT(IdsOf(again->generated), ElementsAre(10, 11));
  EXPECT_THAT(again->prompt, ElementsAre(1, 2, 3));
  EXPECT_EQ(again->generated[0].text, "");
  // The engine tells of them again, and then goes on.
  for (TokenId id : {10, 11, 12}) book.OnToken("a", 2, Token(id));
  book.Leave("a", 2, At(1));
  EXPECT_THAT(IdsOf(book.Reattach("a", 0, 3)->generated), ElementsAre(10, 11, 12));
}

TEST(RequestJournalTest, AnEarlierReadersWordsCountNoMore) {
  RequestJournal book({});
  book.Begin(Ask("a"), 1);
  book.OnToken("a", 1, Token(10));
  ASSERT_TRUE(book.Reattach("a", 0, 2).ok());  // its reader was still there
  book.OnToken("a", 1, Token(11));
  book.Leave("a", 1, At(0));
  book.Forget("a", 1);
  book.Tick(At(1000));
  EXPECT_THAT(IdsOf(book.Reattach("a", 0, 3)->generated), ElementsAre(10));
}

TEST(RequestJournalTest, AnotherTenantFindsNothing) {
  RequestJournal book({});
  book.Begin(Ask("a", 7), 1);
  EXPECT_TRUE(absl::IsNotFound(book.Reattach("a", 0, 2).status()));
  EXPECT_TRUE(absl::IsNotFound(book.Reattach("a", 8, 2).status()));
  EXPECT_TRUE(absl::IsNotFound(book.Reattach("b", 7, 2).status()));
  EXPECT_TRUE(book.Reattach("a", 7, 2).ok());
}

TEST(RequestJournalTest, ARequestWithoutAReaderIsForgottenInTime) {
  RequestJournal book({.resume_timeout = seconds(60)});
  book.Begin(Ask("a"), 1);
  book.Begin(Ask("b"), 2);
  book.TakeChanges();
  EXPECT_EQ(book.deadline(), kNoDeadline);
  book.Leave("a", 1, At(10));
  EXPECT_EQ(book.deadline(), At(70));
  book.Tick(At(69));
  EXPECT_EQ(book.size(), 2u);
  book.Tick(At(70));
  EXPECT_EQ(book.size(), 1u);
  EXPECT_THAT(book.TakeChanges().gone, ElementsAre("a"));
  EXPECT_FALSE(book.Reattach("a", 0, 3).ok());
}

TEST(RequestJournalTest, TheOldestWithoutAReaderMakeRoom) {
  RequestJournal book({.unattended = 2});
  for (int i = 0; i < 4; ++i) {
    const std::string id = std::to_string(i);
    book.Begin(Ask(id), static_cast<uint64_t>(i + 1));
    book.Leave(id, static_cast<uint64_t>(i + 1), At(i));
  }
  EXPECT_EQ(book.size(), 2u);
  EXPECT_FALSE(book.Reattach("1", 0, 9).ok());
  EXPECT_TRUE(book.Reattach("2", 0, 9).ok());
  RequestJournal small({.unattended_bytes = 1});
  small.Begin(Ask("a"), 1);
  EXPECT_EQ(small.size(), 1u);
  small.Leave("a", 1, At(0));
  EXPECT_EQ(small.size(), 0u);
}

// Their clients are on their way back, however many they are: the limits of those without a reader do not count them.
TEST(RequestJournalTest, RestoredOnesThatWereUnderWayAreAllKept) {
  RequestJournal book({.resume_timeout = seconds(60), .unattended = 1, .unattended_bytes = 1, .restored = 3});
  // The ids' order is that of no age.
  for (const char* id : {"c", "a", "b"}) book.Restore(Ask(id), false, At(0));
  EXPECT_EQ(book.size(), 3u);
  EXPECT_EQ(book.deadline(), At(60));
  // Of more than can be held, those that began first go.
  book.Restore(Ask("d"), false, At(1));
  EXPECT_THAT(book.TakeChanges().gone, ElementsAre("c"));
  // Reattached and left again, it is like any other.
  EXPECT_TRUE(book.Reattach("a", 0, 9).ok());
  book.Leave("a", 9, At(2));
  EXPECT_THAT(book.TakeChanges().gone, ElementsAre("a"));
  book.Tick(At(60));
  EXPECT_THAT(book.TakeChanges().gone, ElementsAre("b"));
  book.Tick(At(61));
  EXPECT_EQ(book.size(), 0u);
}

TEST(RequestJournalTest, RestoredOnesAreBoundedInBytes) {
  RequestJournal book({.restored_bytes = 4096});
  for (int i = 0; i < 1000; ++i) book.Restore(Ask(std::to_string(i)), false, At(0));
  EXPECT_GT(book.size(), 2u);
  EXPECT_LT(book.size(), 100u);
  EXPECT_TRUE(book.Reattach("999", 0, 9).ok());
}

// Of those that have ended the last are most likely to be asked for.
TEST(RequestJournalTest, OfRestoredOnesThatHaveEndedTheOldestMakeRoom) {
  RequestJournal book({.unattended = 2});
  const std::vector<std::pair<std::string, bool>> stored = {{"e", true}, {"b", false}, {"d", true}, {"f", true}};
  for (const auto& [id, ended] : stored) book.Restore(Ask(id), ended, At(0));
  EXPECT_THAT(book.TakeChanges().gone, ElementsAre("e"));
  // A request that has ended goes first, although its time limit is later than that of those under way.
  book.Begin(Ask("u"), 1);
  book.Leave("u", 1, At(0));
  EXPECT_THAT(book.TakeChanges().gone, ElementsAre("d"));
  book.Begin(Ask("g"), 2);
  book.Finish("g", 2);
  book.Leave("g", 2, At(1));
  EXPECT_THAT(book.TakeChanges().gone, ElementsAre("f"));
  for (const char* id : {"b", "u", "g"}) EXPECT_TRUE(book.Reattach(id, 0, 9).ok()) << id;
}

TEST(RequestJournalTest, AnEndIsWrittenOnceAndTheOldestFirst) {
  RequestJournal book({});
  book.Begin(Ask("b"), 1);
  book.OnToken("b", 1, Token(1));
  book.Begin(Ask("a"), 2);
  book.Finish("b", 1);
  for (int i = 0; i < 2; ++i) {
    const RequestJournal::Changes changes = book.TakeChanges();
    ASSERT_EQ(changes.begun.size(), 2u);
    EXPECT_EQ(changes.begun[0]->reattach_id, "b");
    ASSERT_EQ(changes.tokens.size(), 1u);
    EXPECT_TRUE(changes.tokens[0].ended);
    // It is reattached, and its end comes again.
    ASSERT_TRUE(book.Reattach("b", 0, 3).ok());
    book.OnToken("b", 3, Token(1));
    book.Finish("b", 3);
    EXPECT_TRUE(book.TakeChanges().empty());
    book.StartAfresh();
  }
}

TEST(RequestJournalTest, WhatWasBeginsAndEndsBetweenTwoWritesIsNeverWritten) {
  RequestJournal book({});
  book.Begin(Ask("a"), 1);
  book.OnToken("a", 1, Token(1));
  book.Forget("a", 1);
  EXPECT_TRUE(book.TakeChanges().empty());
}

TEST(RequestJournalTest, ARestoredRequestIsNotWrittenAgain) {
  RequestJournal book({.resume_timeout = seconds(60)});
  Request r = Ask("a");
  r.generated = {Token(4), Token(5)};
  book.Restore(r, false, At(100));
  EXPECT_TRUE(book.TakeChanges().empty());
  EXPECT_EQ(book.deadline(), At(160));
  EXPECT_THAT(IdsOf(book.Reattach("a", 0, 1)->generated), ElementsAre(4, 5));
  for (TokenId id : {4, 5, 6}) book.OnToken("a", 1, Token(id));
  const RequestJournal::Changes changes = book.TakeChanges();
  EXPECT_THAT(changes.begun, IsEmpty());
  ASSERT_EQ(changes.tokens.size(), 1u);
  EXPECT_EQ(changes.tokens[0].first, 2u);
  EXPECT_THAT(IdsOf(changes.tokens[0].tokens), ElementsAre(6));
}

// Random events. At each moment the store has a beginning of what was drawn, and whoever takes a request up at last has
// each token once.
TEST(RequestJournalTest, TheStoreFollowsInAnyOrder) {
  testing::PlayWorlds({.count = 200, .first = 0}, [](uint64_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    RequestJournal book({.resume_timeout = seconds(5), .unattended = 3});
    Replica store;
    std::map<std::string, std::vector<TokenId>> drawn;
    std::map<std::string, uint64_t> readers;
    uint64_t next_reader = 1;
    TokenId next_token = 0;
    for (int i = 0; i < 200; ++i) {
      const std::string id = std::to_string(random() % 6);
      const Deadline now = At(i / 4);
      switch (random() % 8) {
        case 0:
          if (drawn.count(id) == 0) {
            readers[id] = next_reader++;
            book.Begin(Ask(id), readers[id]);
            drawn[id] = {};
          }
          break;
        case 1: book.Leave(id, readers[id], now); break;
        case 2: {
          const StatusOr<Request> r = book.Reattach(id, 0, next_reader);
          if (!r.ok()) break;
          EXPECT_EQ(IdsOf(r->generated), drawn[id]);
          readers[id] = next_reader++;
          for (const TokenEvent& t : r->generated) book.OnToken(id, readers[id], t);
          break;
        }
        case 3: book.Tick(now); break;
        case 4: store.Apply(book.TakeChanges()); break;
        case 5:
          if (random() % 20 == 0) {
            book.StartAfresh();
            store.requests.clear();
          }
          break;
        default: {
          const size_t before = book.size();
          // Only a reader that is there gets tokens.
          RequestJournal& b = book;
          if (drawn.count(id) == 0 || readers[id] == 0) break;
          b.OnToken(id, readers[id], Token(next_token));
          const StatusOr<Request> r = b.Reattach(id, 0, next_reader);
          if (!r.ok()) break;
          readers[id] = next_reader++;
          drawn[id] = IdsOf(r->generated);
          for (const TokenEvent& t : r->generated) b.OnToken(id, readers[id], t);
          ++next_token;
          EXPECT_EQ(b.size(), before);
        }
      }
    }
    store.Apply(book.TakeChanges());
    EXPECT_EQ(store.requests.size(), book.size());
    for (const auto& [id, ids] : store.requests) EXPECT_EQ(IdsOf(book.Reattach(id, 0, 9999)->generated), ids);
  });
}

TEST(RequestCodecTest, EverySettingComesBack) {
  Request r = Ask("a", 3);
  r.sampling = {.temperature = 0.25f,
                .top_k = 3,
                .top_p = 0.5f,
                .min_p = 0.125f,
                .repetition_penalty = 1.5f,
                .frequency_penalty = -1,
                .presence_penalty = 2,
                .penalty_last_n = -1,
                .logit_bias = {{5, -1.5f}},
                .seed = 0xffffffffffffffff};
  r.stops = {"x", std::string("\0\xff", 2)};
  r.stop_ids = {9, 8};
  r.ignore_end = true;
  r.logprobs = 0;
  r.priority = -7;
  r.cache_salt = 11;
  r.adapter = 3;
  r.boundaries = {1, 2};
  r.generated = {Token(6)};
  r.one_call = DeclaredTools{{"f", {"a", "b"}}, {"g", {}}};
  r.answer_format = {.channels = false,
                     .open = "<think>",
                     .close = "</think>",
                     .call_open = {},
                     .call_close = {},
                     .begins = {},
                     .controls = {{7, "<think>"}},
                     .tools = ToolFormatNamed("kimi")};
  const Request back = DecodeRequest(EncodeRequest(r));
  EXPECT_EQ(back.prompt, r.prompt);
  EXPECT_EQ(back.max_new_tokens, r.max_new_tokens);
  EXPECT_EQ(back.one_call, r.one_call);
  EXPECT_EQ(back.answer_format, r.answer_format);
  EXPECT_EQ(back.stops, r.stops);
  EXPECT_EQ(back.stop_ids, r.stop_ids);
  EXPECT_EQ(back.ignore_end, r.ignore_end);
  EXPECT_EQ(back.logprobs, r.logprobs);
  EXPECT_EQ(back.prompt_logprobs, r.prompt_logprobs);
  EXPECT_EQ(back.priority, r.priority);
  EXPECT_EQ(back.tenant, r.tenant);
  EXPECT_EQ(back.cache_salt, r.cache_salt);
  EXPECT_EQ(back.adapter, r.adapter);
  EXPECT_EQ(back.boundaries, r.boundaries);
  EXPECT_THAT(IdsOf(back.generated), ElementsAre(6));
  EXPECT_EQ(back.sampling, r.sampling);
  EXPECT_FALSE(back.grammar_source.has_value());
  for (const bool other : {false, true}) {
    r.grammar_source = grammar::Source{.kind = grammar::SourceKind::kJsonSchema, .text = "{}"};
    r.compact_json = other;
    r.jump_ahead = !other;
    const Request again = DecodeRequest(EncodeRequest(r));
    EXPECT_EQ(again.grammar_source, r.grammar_source);
    EXPECT_EQ(again.compact_json, r.compact_json);
    EXPECT_EQ(again.jump_ahead, r.jump_ahead);
  }
}

TEST(RequestCodecTest, TokensComeBackAndCutOnesAreRefused) {
  const std::vector<TokenEvent> tokens{{.token = 1, .probability = 0.5f, .logprob = -2, .top = {{3, -1}, {1, -2}}},
                                       {.token = 7, .probability = 1}};
  const std::string bytes = EncodeTokens(tokens);
  std::vector<TokenEvent> back;
  ASSERT_TRUE(DecodeTokens(bytes, &back).ok());
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].top, tokens[0].top);
  EXPECT_EQ(back[0].logprob, -2);
  EXPECT_EQ(back[1].token, 7);
  const size_t whole = bytes.size() - EncodeTokens(std::span(tokens).subspan(1)).size();
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    std::vector<TokenEvent> some;
    EXPECT_EQ(DecodeTokens(bytes.substr(0, cut), &some).ok(), cut == whole) << cut;
  }
}

}  // namespace
}  // namespace gyre
