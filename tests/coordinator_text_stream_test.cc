// Stop strings and UTF-8 over every way to cut a stream, against oracles that see the whole text.
#include "coordinator/engine/text_stream.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/draw.h"

namespace gyre {
namespace {

using testing::Between;
using ::testing::StartsWith;
using Random = testing::RandomBits;
using Strings = std::vector<std::string>;

const std::string kBad = "\xEF\xBF\xBD";

struct Seen {
  std::string text;
  int stop = -1;
  bool operator==(const Seen&) const = default;
};

// The whole text at once: the earliest end, then the longest stop string.
Seen StopOracle(const Strings& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (int i = 0; i < static_cast<int>(stops.size()); ++i) {
      const std::string& stop = stops[static_cast<size_t>(i)];
      if (stop.empty() || stop.size() > end || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      if (best < 0 || stop.size() > stops[static_cast<size_t>(best)].size()) best = i;
    }
    if (best >= 0) return {text.substr(0, end - stops[static_cast<size_t>(best)].size()), best};
  }
  return {text, -1};
}

// The number of bytes at the end of the text that begin a stop string.
size_t HeldOracle(const Strings& stops, const std::string& text) {
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) held = std::max(held, n);
    }
  }
  return held;
}

// Unicode 15, table 3-7, as ranges for each byte of a form.
struct Form {
  std::vector<std::pair<int, int>> bytes;
};
const Form kForms[] = {
    {{{0x00, 0x7F}}},
    {{{0xC2, 0xDF}, {0x80, 0xBF}}},
    {{{0xE0, 0xE0}, {0xA0, 0xBF}, {0x80, 0xBF}}},
    {{{0xE1, 0xEC}, {0x80, 0xBF}, {0x80, 0xBF}}},
    {{{0xED, 0xED}, {0x80, 0x9F}, {0x80, 0xBF}}},
    {{{0xEE, 0xEF}, {0x80, 0xBF}, {0x80, 0xBF}}},
    {{{0xF0, 0xF0}, {0x90, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}}},
    {{{0xF1, 0xF3}, {0x80, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}}},
    {{{0xF4, 0xF4}, {0x80, 0x8F}, {0x80, 0xBF}, {0x80, 0xBF}}},
};

// Substitution of maximal subparts: at each place the longest beginning of any form, whole or not.
std::string Utf8Oracle(const std::string& bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    size_t longest = 0;
    bool whole = false;
    for (const Form& form : kForms) {
      size_t n = 0;
      while (n < form.bytes.size() && at + n < bytes.size()) {
        const int byte = static_cast<unsigned char>(bytes[at + n]);
        if (byte < form.bytes[n].first || byte > form.bytes[n].second) break;
        ++n;
      }
      if (n <= longest) continue;
      longest = n;
      whole = n == form.bytes.size();
    }
    text += whole ? bytes.substr(at, longest) : kBad;
    at += std::max<size_t>(longest, 1);
  }
  return text;
}

Strings RandomCut(Random& random, const std::string& text) {
  Strings pieces;
  for (size_t at = 0; at < text.size();) {
    const auto n = static_cast<size_t>(Between(random, 0, 5));
    pieces.push_back(text.substr(at, n));
    at += n;
  }
  return pieces;
}

Seen RunStops(const Strings& stops, const Strings& pieces) {
  StopMatcher matcher(stops);
  Seen seen;
  for (const std::string& piece : pieces) {
    const StopMatcher::Result result = matcher.Push(piece);
    EXPECT_TRUE(seen.stop < 0 || (result.text.empty() && !result.stopped));
    EXPECT_EQ(result.stopped, result.stop >= 0);
    seen.text += result.text;
    if (result.stopped) seen.stop = result.stop;
  }
  const std::string rest = matcher.Flush();
  EXPECT_TRUE(seen.stop < 0 || rest.empty());
  seen.text += rest;
  return seen;
}

Strings Letters(const std::string& text) {
  Strings pieces;
  for (char c : text) pieces.emplace_back(1, c);
  return pieces;
}

TEST(StopMatcher, WithoutStopsNothingIsHeld) {
  StopMatcher matcher({"", ""});
  EXPECT_EQ(matcher.Push("abc").text, "abc");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, AStopAcrossPiecesEndsTheTextBeforeIt) {
  StopMatcher matcher({"STOP"});
  EXPECT_EQ(matcher.Push("say ST").text, "say ");
  EXPECT_EQ(matcher.Push("O").text, "");
  const StopMatcher::Result result = matcher.Push("P and more");
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.stop, 0);
  EXPECT_EQ(matcher.Push("STOP").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, WhatTurnsOutToBeNoStopIsShown) {
  StopMatcher matcher({"STOP"});
  EXPECT_EQ(matcher.Push("a ST").text, "a ");
  EXPECT_EQ(matcher.Push("AR").text, "STAR");
  EXPECT_EQ(matcher.Push("STO").text, "");
  EXPECT_EQ(matcher.Flush(), "STO");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, TheEarliestEndWins) {
  EXPECT_EQ(RunStops({"abcd", "bc"}, {"xabcd"}), (Seen{"xa", 1}));
  EXPECT_EQ(RunStops({"abcd", "bc"}, Letters("xabcd")), (Seen{"xa", 1}));
  EXPECT_EQ(RunStops({"ab", "abab"}, {"abab"}), (Seen{"", 0}));  // one a prefix of another
}

TEST(StopMatcher, AtOneEndTheLongestWins) {
  EXPECT_EQ(RunStops({"c", "bc", "abc"}, Letters("xxabc")), (Seen{"xx", 2}));
  EXPECT_EQ(RunStops({"abc", "bc", "c"}, Letters("xxbc")), (Seen{"xx", 1}));
  EXPECT_EQ(RunStops({"", "ab", "ab"}, {"ab"}), (Seen{"", 1}));
}

TEST(StopMatcher, StopsThatOverlapThemselves) {
  EXPECT_EQ(RunStops({"aab"}, Letters("aaaab")), (Seen{"aa", 0}));
  EXPECT_EQ(RunStops({"ababc"}, Letters("abababc")), (Seen{"ab", 0}));
  EXPECT_EQ(RunStops({"\n\nQ:", "\n\n\n"}, Letters("a\n\n\n\nQ:")), (Seen{"a", 1}));
}

TEST(StopMatcher, AnyCutGivesWhatTheWholeTextGives) {
  Random random(1);
  int stopped = 0;
  for (int i = 0; i < 20000; ++i) {
    Strings stops(static_cast<size_t>(Between(random, 0, 4)));
    for (std::string& stop : stops) {
      for (int n = Between(random, 0, 6); n > 0; --n) stop += static_cast<char>('a' + Between(random, 0, 2));
    }
    std::string text;
    for (int n = Between(random, 0, 40); n > 0; --n) text += static_cast<char>('a' + Between(random, 0, 2));
    const Seen expected = StopOracle(stops, text);
    stopped += expected.stop >= 0;
    ASSERT_EQ(RunStops(stops, RandomCut(random, text)).text, expected.text);
    ASSERT_EQ(RunStops(stops, Letters(text)), expected);

    // Held back is what may begin a stop string, and no byte more.
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t n = 1; n <= text.size(); ++n) {
      const StopMatcher::Result result = matcher.Push(text.substr(n - 1, 1));
      shown += result.text;
      if (result.stopped) break;
      ASSERT_EQ(shown.size(), n - HeldOracle(stops, text.substr(0, n)));
    }
  }
  EXPECT_GT(stopped, 2000);
  EXPECT_LT(stopped, 18000);
}

std::string RunUtf8(const Strings& pieces) {
  Utf8Assembler assembler;
  std::string text;
  for (const std::string& piece : pieces) text += assembler.Push(piece);
  return text + assembler.Flush();
}

// The examples of Unicode 15, section 3.9, tables 3-8 to 3-11, and more.
TEST(Utf8Assembler, MaximalSubpartsBecomeOneReplacementEach) {
  const std::pair<std::string, int> bad[] = {
      {"\xC0\xAF", 2},          // overlong
      {"\xE0\x80\xBF", 3},      //
      {"\xF0\x81\x82", 3},      //
      {"\xED\xA0\x80", 3},      // surrogates
      {"\xED\xBF\xBF", 3},      //
      {"\xF4\x91\x92\x93", 4},  // beyond U+10FFFF
      {"\xFF", 1},
      {"\x80\xBF", 2},  //
      {"\xE1\x80", 1},
      {"\xE2", 1},  // cut short
      {"\xF0\x91\x92", 1},
      {"\xF1\xBF", 1},                          //
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF", 4},  // table 3-11
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82", 8},  // table 3-8
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF", 8},  // table 3-9
      {"\xF4\x91\x92\x93\xFF", 5},
      {"\x80\xBF", 2},  // table 3-10
  };
  for (const auto& [bytes, count] : bad) {
    std::string expected;
    for (int i = 0; i < count; ++i) expected += kBad;
    EXPECT_EQ(Utf8Oracle(bytes + "A"), expected + "A");
    EXPECT_EQ(RunUtf8({bytes + "A"}), expected + "A");
    EXPECT_EQ(RunUtf8(Letters(bytes + "A")), expected + "A");
    EXPECT_EQ(RunUtf8({bytes}), expected);
  }
}

TEST(Utf8Assembler, CharactersCutAtEveryByte) {
  const std::string text = "A\xC2\xA2\xE2\x82\xAC\xF0\x9F\x98\x80\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBFz";
  EXPECT_EQ(RunUtf8({text}), text);
  EXPECT_EQ(RunUtf8(Letters(text)), text);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Assembler assembler;
    const std::string first = assembler.Push(text.substr(0, cut));
    EXPECT_EQ(Utf8Oracle(first), first) << "only whole characters are shown";
    EXPECT_THAT(text, StartsWith(first));
    EXPECT_LT(cut - first.size(), 4u);
    EXPECT_EQ(first + assembler.Push(text.substr(cut)), text);
    EXPECT_EQ(assembler.Flush(), "");
  }
}

TEST(Utf8Assembler, AnyBytesInAnyCutGiveWhatTheOracleGives) {
  static constexpr unsigned char kBytes[] = {'a',  0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0,
                                             0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  Random random(2);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes;
    for (int n = Between(random, 0, 16); n > 0; --n) {
      bytes += static_cast<char>(Between(random, 0, 9) == 0 ? Between(random, 0, 255)
                                                            : kBytes[Between(random, 0, sizeof kBytes - 1)]);
    }
    ASSERT_EQ(RunUtf8(RandomCut(random, bytes)), Utf8Oracle(bytes));
  }
}

TEST(TextStream, AStopInTheMiddleOfACharacterShowsAReplacement) {
  TextStream stream({"\x82\xAC"});
  const TextStream::Result result = stream.Push("a\xE2\x82\xAC");
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.text, "a" + kBad);
  EXPECT_EQ(stream.Flush().text, "");
}

TEST(TextStream, HoldsStopsAndCharactersAtOnce) {
  TextStream stream({"\xE2\x82\xAC!"});
  EXPECT_EQ(stream.Push("x\xE2").text, "x");
  EXPECT_EQ(stream.Push("\x82\xAC").text, "");
  EXPECT_EQ(stream.Push("?\xF0\x9F").text, "\xE2\x82\xAC?");
  EXPECT_EQ(stream.Flush().text, kBad);
}

// What a reader sees of bytes that are no character can end a text, wherever it is cut.
TEST(TextStream, AReplacementCharacterCanBeAStop) {
  struct Case {
    Strings stops;
    std::string bytes;
    Seen expected;
  };
  const std::string euro = "\xE2\x82\xAC";
  const Case cases[] = {
      {{kBad}, "ab\xFFgh", {"ab", 0}},
      {{kBad}, "ab" + kBad + "gh", {"ab", 0}},
      {{kBad}, "ab\xE2\x82", {"ab", 0}},  // the end of the text cuts a character
      {{kBad}, "ab" + euro + "gh", {"ab" + euro + "gh", -1}},
      {{"x", "b" + kBad + "c"}, "ab\xE2\x82" + std::string("cd"), {"a", 1}},
      {{"cd", "b" + kBad}, "ab\x80" + std::string("cd"), {"a", 1}},  // that which ends first
      {{"bc", kBad + "b"}, "a\xFF" + std::string("bc"), {"a", 1}},
      {{kBad + kBad}, "a\xFF\x80z", {"a", 0}},
      {{kBad, "z\xFF"}, "ab\x80", {"ab", 0}},  // beside one that is no text itself
  };
  for (const Case& c : cases) {
    for (const Strings& pieces : {Strings{c.bytes}, Letters(c.bytes)}) {
      TextStream stream(c.stops);
      Seen seen;
      for (const std::string& piece : pieces) {
        const TextStream::Result result = stream.Push(piece);
        EXPECT_TRUE(seen.stop < 0 || result.text.empty());
        seen.text += result.text;
        if (result.stopped) seen.stop = result.stop;
      }
      const TextStream::Result rest = stream.Flush();
      seen.text += rest.text;
      if (rest.stopped) seen.stop = rest.stop;
      EXPECT_EQ(seen, c.expected) << c.bytes;
    }
  }
}

TEST(TextStream, AnyCutGivesTheStoppedTextInWholeCharacters) {
  const Strings alphabet = {"a", "b", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\x80", "\xE2\x82"};
  Random random(3);
  for (int i = 0; i < 5000; ++i) {
    const auto word = [&](int most) {
      std::string text;
      for (int n = Between(random, 1, most); n > 0; --n) text += alphabet[static_cast<size_t>(Between(random, 0, 6))];
      return text;
    };
    const Strings stops = {word(3), word(2)};
    const std::string text = word(20);
    const Seen expected = StopOracle(stops, text);
    TextStream stream(stops);
    Seen seen;
    for (const std::string& piece : RandomCut(random, text)) {
      const TextStream::Result result = stream.Push(piece);
      ASSERT_EQ(Utf8Oracle(result.text), result.text);
      seen.text += result.text;
      if (result.stopped) seen.stop = result.stop;
    }
    seen.text += stream.Flush().text;
    ASSERT_EQ(seen, (Seen{Utf8Oracle(expected.text), expected.stop}));
  }
}

}  // namespace
}  // namespace gyre
