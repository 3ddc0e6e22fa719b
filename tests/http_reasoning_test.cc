// The reasoning of an answer is the same wherever the tokens cut it.
#include <gtest/gtest.h>

#include <random>

#include "coordinator/http/reasoning.h"

namespace gyre::http {
namespace {

using Piece = ReasoningSplitter::Piece;

struct Parts {
  std::string reasoning, content;
  bool operator==(const Parts&) const = default;
};

Parts Join(const std::vector<std::vector<Piece>>& all) {
  Parts parts;
  for (const auto& pieces : all) {
    for (const Piece& piece : pieces) {
      EXPECT_FALSE(piece.text.empty());
      (piece.reasoning ? parts.reasoning : parts.content) += piece.text;
    }
  }
  return parts;
}

const ReasoningMarkers kText{.open = "<think>", .close = "</think>"};

Parts SplitAt(const std::string& text, bool inside, std::mt19937& random) {
  ReasoningSplitter splitter(kText, inside);
  std::vector<std::vector<Piece>> all;
  size_t at = 0;
  while (at < text.size() && random() % 20 != 0) {
    const size_t n = std::min<size_t>(random() % 4, text.size() - at);
    all.push_back(splitter.Push(1, text.substr(at, n)));
    at += n;
  }
  all.push_back(splitter.Finish(text.substr(at)));
  return Join(all);
}

TEST(Reasoning, IsSplitAlikeHoweverTheTextIsCut) {
  struct Case {
    std::string text;
    bool inside;
    Parts parts;
  };
  const Case cases[] = {
      {"<think>\nWhy? <b>\n</think>\n\nBecause.", false, {"Why? <b>", "Because."}},
      {"  <think></think>x", false, {"", "x"}},
      {"Why?\n\nSo.\n</think>\n\nBecause. </think> <think>", true, {"Why?\n\nSo.", "Because. </think> <think>"}},
      {"no <think> here</think>", false, {"", "no <think> here</think>"}},
      {"<thin", false, {"", "<thin"}},
      {"<think>never ends </thin", false, {"never ends </thin", ""}},
      {"ends at once</think>", true, {"ends at once", ""}},
      {" leading space stays", false, {"", " leading space stays"}},
      {"", true, {"", ""}},
  };
  std::mt19937 random(7);
  for (const Case& c : cases) {
    for (int i = 0; i < 200; ++i) ASSERT_EQ(SplitAt(c.text, c.inside, random), c.parts) << c.text;
  }
}

TEST(Reasoning, ComesAsItIsThought) {
  ReasoningSplitter splitter(kText, false);
  EXPECT_TRUE(splitter.Push(1, "<think>").empty());
  EXPECT_EQ(splitter.Push(1, "\nOne"), (std::vector<Piece>{{true, "One"}}));
  EXPECT_TRUE(splitter.Push(1, "\n").empty());
  EXPECT_EQ(splitter.Push(1, "two </"), (std::vector<Piece>{{true, "\ntwo"}}));
  EXPECT_EQ(splitter.Push(1, "think>\n\nYes"), (std::vector<Piece>{{false, "Yes"}}));
  EXPECT_EQ(splitter.Push(1, "!"), (std::vector<Piece>{{false, "!"}}));
}

TEST(Reasoning, ControlTokensHaveNoText) {
  const ReasoningMarkers control{.open = "[THINK]", .close = "[/THINK]", .open_id = 8, .close_id = 9};
  ReasoningSplitter splitter(control, false);
  EXPECT_TRUE(splitter.Push(8, "").empty());
  EXPECT_EQ(splitter.Push(1, "deep ["), (std::vector<Piece>{{true, "deep"}}));
  EXPECT_EQ(splitter.Push(9, " thought [/T "), (std::vector<Piece>{{true, " [ thought [/T"}}));
  EXPECT_TRUE(splitter.Push(1, "\n").empty());
  EXPECT_EQ(splitter.Push(9, "So."), (std::vector<Piece>{{false, "So."}}));
}

}  // namespace
}  // namespace gyre::http
