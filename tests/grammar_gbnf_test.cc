// Grammars in llama.cpp's form.
#include "coordinator/grammar/gbnf.h"

#include <gmock/gmock.h>

#include "coordinator/grammar/choices.h"
#include "tests/testing/grammar_text.h"

namespace gyre::grammar {
namespace {

using ::testing::HasSubstr;
using testing::Takes;

TEST(GrammarGbnf, RecursesOnBothSidesAndInTheMiddle) {
  const auto g = testing::Compiled(GbnfGrammar(R"gbnf(
root ::= sum
sum ::= sum "+" product | product   # left
product ::= atom "*" product | atom # right
atom ::= [0-9]+ | "(" sum ")" | hidden
hidden ::= nothing hidden "!" | "h"
nothing ::= "x"*
)gbnf"));
  ASSERT_NE(g, nullptr);
  EXPECT_TRUE(Takes(g.get(), "1+2*(3+4)*5"));
  EXPECT_TRUE(Takes(g.get(), "h!!+xxh!!!*xxxh!"));
  EXPECT_FALSE(Takes(g.get(), "1+*2"));
  EXPECT_FALSE(Takes(g.get(), "(1+2"));
  std::string deep;
  for (int i = 0; i < 2000; ++i) deep += "(1+";
  deep += "2" + std::string(2000, ')');
  EXPECT_TRUE(Takes(g.get(), deep));
}

TEST(GrammarGbnf, RecursionOnTheRightHasNoStack) {
  const auto g = testing::Compiled(GbnfGrammar("root ::= [a-z] root | \".\"\n"));
  ASSERT_NE(g, nullptr);
  EXPECT_TRUE(Takes(g.get(), std::string(5000, 'a') + "."));
  EXPECT_LT(g->size().states, 20u);
}

TEST(GrammarGbnf, AmbiguousOnesGrowSlowly) {
  const auto g = testing::Compiled(GbnfGrammar("root ::= root root | \"a\" | \"\"\n"));
  ASSERT_NE(g, nullptr);
  EXPECT_TRUE(Takes(g.get(), std::string(60, 'a')));
  EXPECT_FALSE(Takes(g.get(), "aab"));
}

TEST(GrammarGbnf, DropsWhatNeverEnds) {
  const auto g = testing::Compiled(GbnfGrammar("root ::= \"a\" loop | \"b\"\nloop ::= \"c\" loop\n"));
  ASSERT_NE(g, nullptr);
  EXPECT_TRUE(g->Advance(g->start(), "a")->dead());
  EXPECT_TRUE(Takes(g.get(), "b"));
  EXPECT_FALSE(GbnfGrammar("root ::= \"c\" root\n").ok());
}

TEST(GrammarGbnf, RefusesByName) {
  for (const auto& [text, reason] :
       std::vector<std::pair<std::string, std::string>>{{"", "root"},
                                                        {"root ::= x\n", "x"},
                                                        {"root ::= \"a\n", "string"},
                                                        {"root ::= \"a\"\nroot ::= \"b\"\n", "twice"},
                                                        {"root = \"a\"\n", "::="},
                                                        {"root ::= \"a\"{3,2}\n", "order"},
                                                        {"root ::= [\\ud800]\n", "character"},
                                                        {"root ::= " + std::string(5000, '('), "groups"}}) {
    const auto g = GbnfGrammar(text);
    ASSERT_FALSE(g.ok()) << text.substr(0, 40);
    EXPECT_THAT(std::string(g.status().message()), HasSubstr(reason)) << text.substr(0, 40);
  }
}

TEST(GrammarGbnf, Choices) {
  const auto g = testing::Compiled(ChoicesGrammar({"yes", "no", "not yet", ""}));
  ASSERT_NE(g, nullptr);
  for (const char* text : {"yes", "no", "not yet", ""}) EXPECT_TRUE(Takes(g.get(), text));
  EXPECT_FALSE(Takes(g.get(), "not"));
  EXPECT_EQ(g->ForcedBytes(*g->Advance(g->start(), "not"), 100), " yet");
  EXPECT_FALSE(ChoicesGrammar({}).ok());
}

TEST(GrammarGbnf, SharedCases) {
  const auto cases = testing::SharedCases("grammars.jsonl");
  if (cases.empty()) GTEST_SKIP() << "the shared cases of grammars are not beside this checkout";
  for (const auto& c : cases) {
    const std::string id(c.at("id").as_string()), text(c.at("grammar").as_string());
    auto g = GbnfGrammar(text);
    if (c.contains("refuse")) {
      ASSERT_FALSE(g.ok()) << id;
      EXPECT_THAT(std::string(g.status().message()), HasSubstr(std::string(c.at("refuse").as_string()))) << id;
      continue;
    }
    ASSERT_TRUE(g.ok()) << id << ": " << g.status();
    const auto compiled = testing::Compiled(std::move(g));
    ASSERT_NE(compiled, nullptr);
    for (const auto& t : c.at("accept").as_array()) EXPECT_TRUE(Takes(compiled.get(), t.as_string())) << id << t;
    for (const auto& t : c.at("reject").as_array()) EXPECT_FALSE(Takes(compiled.get(), t.as_string())) << id << t;
  }
}

}  // namespace
}  // namespace gyre::grammar
