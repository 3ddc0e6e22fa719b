// Words on a terminal's rows, as a terminal shows what WordWrap writes.
#include "cli/word_wrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <wchar.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cli/terminal.h"
#include "cli/terminal_text.h"
#include "model/utf8.h"

namespace gyre {
namespace {

using ::testing::ElementsAre;

// A terminal's rows. It knows what WordWrap writes: text, ends of lines, the row's beginning, a move to the right, and
// the erasure of the row's rest.
class Screen {
 public:
  explicit Screen(size_t columns) : columns_(columns) {}

  void Write(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      if (bytes[at] == '\033') {
        const size_t end = bytes.find_first_of("CK", at);
        ASSERT_NE(end, std::string::npos);
        if (bytes[end] == 'C') {
          x_ = std::min(x_ + std::stoul(bytes.substr(at + 2)), columns_ - 1);
        } else {
          rows_.back().resize(std::min(rows_.back().size(), std::min(x_, columns_ - 1)));
        }
        at = end + 1;
        continue;
      }
      const size_t length = Utf8Length(bytes, at);
      Put(bytes.substr(at, length), Utf8Decode(bytes, at, length));
      at += length;
    }
  }
  std::vector<std::string> Rows() const {
    std::vector<std::string> out;
    for (const auto& row : rows_) {
      std::string text;
      for (const std::string& cell : row) text += cell;
      out.push_back(text.substr(0, text.find_last_not_of(' ') + 1));
    }
    return out;
  }
  // How often a character did not fit, so that the terminal itself began a row.
  int overflows() const { return overflows_; }

 private:
  void Put(const std::string& bytes, char32_t code) {
    if (code == '\n') {
      rows_.emplace_back();
      x_ = 0;
      return;
    }
    if (code == '\r') {
      x_ = 0;
      return;
    }
    const int width = wcwidth(static_cast<wchar_t>(code));
    if (width == 0) {  // part of the character before
      if (!rows_.back().empty()) rows_.back().back() += bytes;
      return;
    }
    if (x_ + static_cast<size_t>(width) > columns_) {
      ++overflows_;
      rows_.emplace_back();
      x_ = 0;
    }
    rows_.back().resize(x_, " ");
    rows_.back().push_back(bytes);
    if (width == 2) rows_.back().emplace_back();
    x_ += static_cast<size_t>(width);
  }

  const size_t columns_;
  std::vector<std::vector<std::string>> rows_{1};
  size_t x_ = 0;
  int overflows_ = 0;
};

class WordWrapTest : public ::testing::Test {
 protected:
  WordWrapTest() { UseUtf8(); }

  // The rows of a text that comes in pieces of `piece` bytes.
  static std::vector<std::string> Rows(const std::string& text, size_t columns, size_t piece = 1) {
    Screen screen(columns);
    WordWrap wrap;
    for (size_t at = 0; at < text.size(); at += piece) screen.Write(wrap.Push(text.substr(at, piece), columns));
    EXPECT_EQ(screen.overflows(), 0) << text;
    return screen.Rows();
  }
};

TEST_F(WordWrapTest, AWordThatDoesNotFitMoves) {
  for (const size_t piece : {1, 2, 5, 100}) {
    EXPECT_THAT(Rows("the quick brown fox jumps", 10, piece), ElementsAre("the quick", "brown fox", "jumps"));
    EXPECT_THAT(Rows("exactly te n more", 10, piece), ElementsAre("exactly te", "n more"));
    EXPECT_THAT(Rows("one two\n\nthree four five", 10, piece), ElementsAre("one two", "", "three four", "five"));
  }
}

TEST_F(WordWrapTest, ALongWordBreaksWhereTheRowEnds) {
  EXPECT_THAT(Rows("a abcdefghijklmnopqrstuvw x", 10), ElementsAre("a", "abcdefghij", "klmnopqrst", "uvw x"));
}

TEST_F(WordWrapTest, SpacesThatDoNotFitAreLeftOut) {
  EXPECT_THAT(Rows("exactly te   and", 10), ElementsAre("exactly te", "and"));
  EXPECT_THAT(Rows("  two spaces", 10), ElementsAre("  two", "spaces"));
}

TEST_F(WordWrapTest, WideCharactersEndARowWithoutASpace) {
  EXPECT_THAT(Rows("漢字漢字漢字漢", 10), ElementsAre("漢字漢字漢", "字漢"));
  EXPECT_THAT(Rows("a漢字漢字漢", 10), ElementsAre("a漢字漢字", "漢"));
  EXPECT_THAT(Rows("abcdefgh漢字", 10), ElementsAre("abcdefgh漢", "字"));
  EXPECT_THAT(Rows("漢字漢字word", 10), ElementsAre("漢字漢字", "word"));
  EXPECT_THAT(Rows("tell me 🦊🦊", 10), ElementsAre("tell me 🦊", "🦊"));
  // Letters with marks of their own take one column.
  EXPECT_THAT(Rows("e\u0301e\u0301e\u0301e\u0301 abcdef", 10), ElementsAre("e\u0301e\u0301e\u0301e\u0301", "abcdef"));
}

TEST_F(WordWrapTest, WhatBelongsTogetherStaysInARow) {
  for (const std::string together : {"👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "❤\ufe0f"}) {
    for (size_t before = 0; before < 12; ++before) {
      WordWrap wrap;
      std::string out = wrap.Push(std::string(before, 'x') + " ", 12);
      out = wrap.Push(together, 12);
      EXPECT_THAT(out, ::testing::HasSubstr(together)) << before;
    }
  }
}

TEST_F(WordWrapTest, CodeStaysAsItIs) {
  const std::string code = "int main() { return 0; }";
  const auto rows = [&code](const std::string& fence) {
    WordWrap wrap;
    return wrap.Push(fence + "cpp\n" + code + "\n" + fence + "\nthe quick brown", 10);
  };
  EXPECT_EQ(rows("```"), "```cpp\n" + code + "\n```\nthe quick \nbrown");
  EXPECT_THAT(rows("``"), ::testing::Not(::testing::HasSubstr(code)));
}

TEST_F(WordWrapTest, WithoutAKnownWidthNothingChanges) {
  WordWrap wrap;
  EXPECT_EQ(wrap.Push("the quick brown fox jumps", 0), "the quick brown fox jumps");
}

TEST_F(WordWrapTest, CutAndBrokenCharactersArePassedOn) {
  EXPECT_THAT(Rows("ä漢🦊", 20, 1), ElementsAre("ä漢🦊"));
  WordWrap wrap;
  EXPECT_EQ(wrap.Push("a\xff\xc3(", 20), "a\xff\xc3(");
}

TEST(TerminalTextTest, ControlCharactersAreShownWhereverTheTextIsCut) {
  // The C1 characters, of two bytes, control a terminal as well; a byte that is no UTF-8 may be one of them.
  const std::string text =
      "a\tä漢🦊\r\n\x1b]0;title\x07\x1b[2J b\rc\x08\x7f\xc2\x9b"
      "31m\x9b\x80\xc3(\n\n";
  const std::string shown =
      "a\tä漢🦊\n\\x1b]0;title\\x07\\x1b[2J b\\x0dc\\x08\\x7f\\xc2\\x9b31m\\x9b\\x80\\xc3(\n\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    TerminalText terminal;
    std::string out;
    for (size_t at = 0; at < text.size(); at += piece) out += terminal.Push(text.substr(at, piece));
    EXPECT_EQ(out + terminal.End(), shown) << piece;
  }
  TerminalText cut;
  EXPECT_EQ(cut.Push("a\xf0\x9f"), "a");
  EXPECT_EQ(cut.End(), "\\xf0\\x9f");
  EXPECT_EQ(cut.Push("b\r"), "b");
  EXPECT_EQ(cut.End(), "\\x0d");
}

// Random texts: no letter is lost, no row is too long, and no word that fits into a row is cut.
TEST_F(WordWrapTest, AnyTextKeepsItsWords) {
  std::mt19937 random(1);
  const std::string kParts[] = {"a", "b", "c", "-", "é", "漢", "🦊", " ", " ", "\n"};
  for (int round = 0; round < 300; ++round) {
    const size_t columns = 16 + random() % 20;
    std::string text;
    for (size_t i = 0; i < 200; ++i) text += kParts[random() % std::size(kParts)];
    const auto rows = Rows(text, columns, 1 + random() % 9);
    std::string shown, asked = text;
    for (const std::string& row : rows) shown += row;
    for (std::string* both : {&shown, &asked}) {
      both->erase(std::remove_if(both->begin(), both->end(), [](char c) { return c == ' ' || c == '\n'; }),
                  both->end());
    }
    ASSERT_EQ(shown, asked) << text;
    // Words of narrow letters alone.
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find_first_of(" \n", at), text.size());
      const std::string word = text.substr(at, end - at);
      at = end + 1;
      const bool narrow = word.find("漢") == std::string::npos && word.find("🦊") == std::string::npos;
      if (!narrow || word.size() > columns) continue;
      EXPECT_TRUE(std::any_of(rows.begin(), rows.end(),
                              [&](const std::string& row) { return row.find(word) != std::string::npos; }))
          << word << " in: " << text;
    }
  }
}

}  // namespace
}  // namespace gyre
