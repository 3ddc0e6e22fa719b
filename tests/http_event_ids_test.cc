// The ids of a stream's events: a client that has seen some gets the others, and each once.
#include "coordinator/http/event_ids.h"

#include <gtest/gtest.h>

#include <random>

namespace gyre::http {
namespace {

constexpr char kStream[] = "0a1b-00000001-00112233445566778899aabbccddeeff";

struct Seen {
  std::string last;
  std::vector<std::string> data;
};
Seen Read(const std::string& bytes) {
  Seen seen;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = bytes.find("\n\n", at);
    std::string event = bytes.substr(at, end - at);
    EXPECT_EQ(event.compare(0, 4, "id: "), 0) << event;
    const size_t line = event.find('\n');
    seen.last = event.substr(4, line - 4);
    seen.data.push_back(event.substr(line + 1));
    at = end + 2;
  }
  return seen;
}

// A stream of three choices, in an order that differs each time.
std::string Write(EventIds ids, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out;
  ids.AppendWhole("data: begin 0\n\ndata: begin 1\n\ndata: begin 2\n\n", &out);
  std::vector<int> next(3, 0);
  while (next != std::vector<int>{20, 20, 20}) {
    const size_t c = random() % 3;
    if (next[c] == 20) continue;
    std::string events = "event: x\ndata: " + std::to_string(c) + " " + std::to_string(next[c]) + "\n\n";
    if (next[c] == 19) events += "data: " + std::to_string(c) + " end\n\n";
    ++next[c];
    ids.AppendChoice(c, events, &out);
  }
  ids.AppendWhole("data: usage\n\ndata: [DONE]\n\n", &out);
  return out;
}

TEST(EventIdsTest, WhereverAStreamIsCutTheOtherHasTheRest) {
  const std::string whole = Write(EventIds(kStream, 3), 1);
  std::vector<std::string> all = Read(whole).data;
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all.size(), 3u + 60 + 3 + 2);
  uint32_t seed = 2;
  for (size_t cut = whole.find("\n\n") + 2; cut < whole.size(); cut = whole.find("\n\n", cut) + 2) {
    const Seen first = Read(whole.substr(0, cut));
    const auto ids = EventIds::Parse(first.last);
    ASSERT_TRUE(ids.ok()) << first.last;
    EXPECT_EQ(ids->choices(), 3u);
    EXPECT_EQ(ids->stream(), kStream);
    const std::string rest = Write(*ids, ++seed);
    Seen second = Read(rest);
    std::vector<std::string> both = first.data;
    both.insert(both.end(), second.data.begin(), second.data.end());
    std::sort(both.begin(), both.end());
    ASSERT_EQ(both, all) << first.last;
    if (rest.empty()) continue;
    // And once more in the middle of that.
    const size_t half = rest.find("\n\n", rest.size() / 2) + 2;
    const Seen begun = Read(rest.substr(0, half));
    const Seen third = Read(Write(*EventIds::Parse(begun.last), ++seed));
    both = first.data;
    both.insert(both.end(), begun.data.begin(), begun.data.end());
    both.insert(both.end(), third.data.begin(), third.data.end());
    std::sort(both.begin(), both.end());
    ASSERT_EQ(both, all) << begun.last;
  }
}

TEST(EventIdsTest, OneThatIsOffChangesNothing) {
  EventIds off;
  std::string out;
  off.AppendWhole("data: x\n\n", &out);
  off.AppendChoice(5, "data: y\n\n", &out);
  EXPECT_EQ(out, "data: x\n\ndata: y\n\n");
}

TEST(EventIdsTest, WhatIsNoIdIsRefused) {
  for (const char* text : {"", ":", "a", "a:", "a:1", "a:1.", "a:.1", "a:1.x", "a:1.-2", "a b:1.2", "a:1.2.", "a:1,2",
                           ":1.2", "a:99999999999999999999.1", "a/../b:1.2"}) {
    EXPECT_FALSE(EventIds::Parse(text).ok()) << text;
  }
  EXPECT_TRUE(EventIds::Parse("a:1.2").ok());
  std::string many = "a:0";
  for (int i = 0; i < 200; ++i) many += ".1";
  EXPECT_FALSE(EventIds::Parse(many).ok());
  EXPECT_FALSE(EventIds::Parse(std::string(101, 'a') + ":1.2").ok());
}

TEST(EventIdsTest, AnAnswerKeepsItsName) {
  HttpRequest request{.id = "new"};
  EXPECT_EQ(AnswerId(request), "new");
  request.headers = {{"last-event-id", std::string(kStream) + ":3.4"}};
  EXPECT_EQ(AnswerId(request), "0a1b-00000001");
  request.headers = {{"last-event-id", "nonsense"}};
  EXPECT_EQ(AnswerId(request), "new");
}

}  // namespace
}  // namespace gyre::http
