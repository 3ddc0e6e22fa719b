// Regular expressions of ECMA-262 as grammars.
#include "coordinator/grammar/regex.h"

#include <gmock/gmock.h>

#include "tests/testing/grammar_text.h"

namespace gyre::grammar {
namespace {

using ::testing::HasSubstr;
using testing::Takes;

bool Matches(std::string_view pattern, std::string_view text) {
  const auto g = testing::Compiled(RegexGrammar(pattern));
  if (g == nullptr) {
    ADD_FAILURE() << pattern;
    return false;
  }
  return Takes(g.get(), text);
}

// As JSON Schema's "pattern".
bool Finds(std::string_view pattern, std::string_view text) {
  Expressions e{Bounds{}};
  const auto all = ReadPattern(&e, pattern, {.search = true, .lenient = true});
  if (!all.ok()) {
    ADD_FAILURE() << pattern << ": " << all.status();
    return false;
  }
  return e.Takes(*all, text);
}

TEST(GrammarRegex, TakesTheWholeText) {
  EXPECT_TRUE(Matches("a+(?:b|c){2,3}", "aabcb"));
  EXPECT_FALSE(Matches("a+(?:b|c){2,3}", "aab"));
  EXPECT_FALSE(Matches("a+(?:b|c){2,3}", "xaabcb"));
  EXPECT_TRUE(Matches("", ""));
  EXPECT_TRUE(Matches("\\p{Lu}\\p{Ll}+", "Ängst"));
  EXPECT_FALSE(Matches("\\p{Lu}\\p{Ll}+", "ängst"));
}

TEST(GrammarRegex, CountersOfCountersStaySmall) {
  const auto g = testing::Compiled(RegexGrammar("(?:a{1,100}){1,100}"));
  ASSERT_NE(g, nullptr);
  EXPECT_TRUE(Takes(g.get(), std::string(5000, 'a')));
  EXPECT_FALSE(Takes(g.get(), std::string(10001, 'a')));
  EXPECT_LT(g->size().expressions, 100'000u);
}

TEST(GrammarRegex, CatastrophicOnesAreQuick) {
  EXPECT_TRUE(Matches("(a*)*b|(?:a|aa)+c|(x+x+)+y", std::string(300, 'a') + "c"));
  EXPECT_FALSE(Matches("(a*)*b|(?:a|aa)+c|(x+x+)+y", std::string(300, 'x') + "z"));
  const auto g = testing::Compiled(RegexGrammar("(?:a|b)*a(?:a|b){40}"));
  ASSERT_NE(g, nullptr);
  std::string text;
  for (int i = 0; i < 300; ++i) text += (i * i + i / 3) % 7 < 3 ? 'a' : 'b';
  text[300 - 41] = 'a';
  EXPECT_TRUE(Takes(g.get(), text));
  text[300 - 41] = 'b';
  EXPECT_FALSE(Takes(g.get(), text));
}

TEST(GrammarRegex, AnchorsMeanTheEndsOfTheText) {
  EXPECT_TRUE(Finds("b+", "abbc"));
  EXPECT_FALSE(Finds("^b+", "abbc"));
  EXPECT_TRUE(Finds("^a|c$", "bc"));
  EXPECT_FALSE(Finds("^(?:a|c$)", "bc"));
  EXPECT_TRUE(Finds("(?:^|x)y", "y"));
  EXPECT_TRUE(Finds("(?:^|x)y", "axy"));
  EXPECT_FALSE(Finds("(?:^|x)y", "ay"));
  EXPECT_TRUE(Finds("^$", ""));
  EXPECT_FALSE(Finds("^$", "a"));
  EXPECT_FALSE(Finds("a^b", "ab"));
  EXPECT_TRUE(Finds("(?:^a)*b", "cb"));
  EXPECT_TRUE(Finds("^(?:a$|ab)?", ""));
  EXPECT_TRUE(Finds("^\\S(?:|(?:.|\\n)*\\S)$", "a b"));
}

TEST(GrammarRegex, RefusesByName) {
  for (const auto& [pattern, reason] :
       std::vector<std::pair<std::string, std::string>>{{"(?=a)b", "lookahead"},
                                                        {"(?<!a)b", "lookbehind"},
                                                        {"(a)\\1", "back reference"},
                                                        {"\\bx", "word boundary"},
                                                        {"\\p{Script=Greek}", "Script=Greek"},
                                                        {"(a", "not a regular expression"},
                                                        {"a)", "not a regular expression"},
                                                        {"a{2,1}", "not a regular expression"},
                                                        {"a**", "not a regular expression"},
                                                        {"{1}", "not a regular expression"},
                                                        {"[b-a]", "not a regular expression"},
                                                        {"\\-", "not a regular expression"},
                                                        {"\xFF", "not a regular expression"},
                                                        {std::string(1000, '('), "groups"},
                                                        {std::string(2 << 20, 'a'), "bytes"}}) {
    const auto g = RegexGrammar(pattern);
    ASSERT_FALSE(g.ok()) << pattern.substr(0, 20);
    EXPECT_THAT(std::string(g.status().message()), HasSubstr(reason)) << pattern.substr(0, 20);
  }
}

TEST(GrammarRegex, SharedCases) {
  const auto cases = testing::SharedCases("regexes.jsonl");
  if (cases.empty()) GTEST_SKIP() << "the shared cases of regular expressions are not beside this checkout";
  for (const auto& c : cases) {
    const std::string id(c.at("id").as_string()), pattern(c.at("pattern").as_string());
    const auto g = RegexGrammar(pattern);
    if (c.contains("refuse")) {
      ASSERT_FALSE(g.ok()) << id;
      EXPECT_THAT(std::string(g.status().message()), HasSubstr(std::string(c.at("refuse").as_string()))) << id;
      continue;
    }
    ASSERT_TRUE(g.ok()) << id << ": " << g.status();
    for (const auto& text : c.at("accept").as_array()) EXPECT_TRUE(Matches(pattern, text.as_string())) << id << text;
    for (const auto& text : c.at("reject").as_array()) EXPECT_FALSE(Matches(pattern, text.as_string())) << id << text;
  }
}

}  // namespace
}  // namespace gyre::grammar
