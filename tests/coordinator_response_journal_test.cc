// The responses that clients may go on from: whose they are, and which go when there is no room.
#include "coordinator/state/response_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace gyre {
namespace {

using ::testing::ElementsAre;

KeptResponse Response(const std::string& id, const std::string& previous = "", uint64_t tenant = 1) {
  return {
      .id = id, .tenant = tenant, .previous = previous, .input = "[\"" + id + "\"]", .response = "{}", .created = 5};
}

std::vector<std::string> Ids(const StatusOr<std::vector<KeptResponse>>& conversation) {
  std::vector<std::string> out;
  if (!conversation.ok()) return {std::string(conversation.status().message())};
  for (const KeptResponse& r : *conversation) out.push_back(r.id);
  return out;
}

TEST(ResponseJournal, AConversationIsFoundByItsOwner) {
  ResponseJournal book({});
  book.Keep(Response("a"), 0);
  book.Keep(Response("b", "a"), 1);
  book.Keep(Response("c", "b"), 2);
  book.Keep(Response("other", "a"), 3);
  EXPECT_THAT(Ids(book.Conversation("c", 1, 4)), ElementsAre("a", "b", "c"));
  EXPECT_THAT(Ids(book.Conversation("other", 1, 4)), ElementsAre("a", "other"));
  EXPECT_EQ(book.Find("b", 1, 4)->input, "[\"b\"]");
  EXPECT_TRUE(absl::IsNotFound(book.Find("b", 2, 4).status())) << "another's";
  EXPECT_TRUE(absl::IsNotFound(book.Conversation("c", 2, 4).status()));
  EXPECT_TRUE(absl::IsNotFound(book.Delete("c", 2, 4)));
  EXPECT_TRUE(absl::IsNotFound(book.Find("d", 1, 4).status()));
  // The same id of two owners is two responses.
  book.Keep(Response("b", "", 2), 5);
  EXPECT_THAT(Ids(book.Conversation("b", 2, 6)), ElementsAre("b"));
  EXPECT_THAT(Ids(book.Conversation("b", 1, 6)), ElementsAre("a", "b"));
}

TEST(ResponseJournal, WhatIsDeletedIsThereForThoseThatGoOnFromItAlone) {
  ResponseJournal book({});
  book.Keep(Response("a"), 0);
  book.Keep(Response("b", "a"), 0);
  ASSERT_TRUE(book.Delete("a", 1, 1).ok());
  EXPECT_TRUE(absl::IsNotFound(book.Find("a", 1, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(book.Conversation("a", 1, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(book.Delete("a", 1, 1))) << "once";
  EXPECT_THAT(Ids(book.Conversation("b", 1, 1)), ElementsAre("a", "b"));
  ASSERT_TRUE(book.Delete("b", 1, 2).ok());
  EXPECT_EQ(book.size(), 0u);
  EXPECT_EQ(book.bytes(), 0u);
}

TEST(ResponseJournal, TheLongestUnusedGoFirstAndAConversationFromItsEnd) {
  ResponseJournal book({.responses = 4});
  book.Keep(Response("a"), 0);
  book.Keep(Response("b", "a"), 0);
  book.Keep(Response("x"), 0);
  EXPECT_THAT(Ids(book.Conversation("b", 1, 0)), ElementsAre("a", "b"));
  book.Keep(Response("y"), 0);
  book.Keep(Response("z"), 0);
  EXPECT_TRUE(absl::IsNotFound(book.Find("x", 1, 0).status()));
  book.Keep(Response("w"), 0);
  EXPECT_TRUE(absl::IsNotFound(book.Find("b", 1, 0).status()));
  EXPECT_THAT(Ids(book.Conversation("a", 1, 0)), ElementsAre("a")) << "what is left is whole";
}

TEST(ResponseJournal, TimeAndBytesAreBounded) {
  ResponseJournal book({.keep_seconds = 10, .bytes = 5000});
  book.Keep(Response("a"), 0);
  book.Keep(Response("b", "a"), 8);
  EXPECT_TRUE(book.Find("a", 1, 12).ok()) << "its conversation went on";
  EXPECT_FALSE(book.Find("a", 1, 18).ok());
  EXPECT_EQ(book.size(), 0u);
  KeptResponse large = Response("large");
  large.response = std::string(6000, 'x');
  book.Keep(large, 20);
  EXPECT_EQ(book.size(), 0u) << "larger than everything";
  for (int i = 0; i < 10; ++i) {
    KeptResponse r = Response("r" + std::to_string(i));
    r.response = std::string(1000, 'x');
    book.Keep(r, 20);
    EXPECT_LE(book.bytes(), 5000u);
  }
  EXPECT_GE(book.size(), 3u);
  EXPECT_TRUE(book.Find("r9", 1, 20).ok());
  // A response that is written again counts once.
  const size_t bytes = book.bytes(), size = book.size();
  book.Keep(*book.Find("r9", 1, 20), 20);
  EXPECT_EQ(book.bytes(), bytes);
  EXPECT_EQ(book.size(), size);
}

// What a store writes down is what the book has.
TEST(ResponseJournal, ChangesAreTheWholeState) {
  std::map<std::string, KeptResponse> stored;
  const auto write = [&stored](ResponseJournal& book) {
    for (auto& [key, response] : book.TakeChanges()) {
      if (response) {
        stored[key] = *response;
      } else {
        stored.erase(key);
      }
    }
  };
  ResponseJournal book({.responses = 3});
  for (const auto& [id, previous] :
       std::vector<std::pair<std::string, std::string>>{{"a", ""}, {"b", "a"}, {"c", "b"}, {"d", ""}, {"e", "d"}}) {
    book.Keep(Response(id, previous), 0);
    write(book);
    EXPECT_EQ(stored.size(), book.size());
  }
  ASSERT_TRUE(book.Delete("d", 1, 0).ok());
  write(book);
  std::vector<KeptResponse> all;
  for (const auto& [key, response] : stored) all.push_back(response);
  ResponseJournal next({.responses = 3});
  next.Restore(all, 6);
  EXPECT_TRUE(next.TakeChanges().empty());
  EXPECT_EQ(next.size(), book.size());
  EXPECT_EQ(next.bytes(), book.bytes());
  EXPECT_THAT(Ids(next.Conversation("e", 1, 6)), ElementsAre("d", "e"));
  EXPECT_FALSE(next.Find("d", 1, 6).ok());
}

}  // namespace
}  // namespace gyre
