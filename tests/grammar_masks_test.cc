// Masks equal what trying every token gives, and texts drawn by masks alone can always end.
#include "coordinator/grammar/masks.h"

#include <gmock/gmock.h>

#include <random>

#include "coordinator/grammar/gbnf.h"
#include "coordinator/grammar/regex.h"
#include "tests/testing/grammar_text.h"

namespace gyre::grammar {
namespace {

const std::vector<std::string>& Longer() {
  static const std::vector<std::string> kLonger = {
      "ab",          "abc",      "a",        "\"a", "\",", "\",\"", "\"}",  "{\"", "\":",
      "\": ",        "  ",       "\n",       "\n ", "12",  "123",   "true", "é",   "éa",
      "\xC3",        "\xA9x",    "(1",       "1)",  "))",  "+1",    "1+",   "- ",  "aaaaaaaaaaaaaaaa",
      "hello world", "x\"",      "\\n",      "bb",  "cab", "yes",   "no",   "0.",  ".5",
      "e+",          "\xF0\x9F", "\x99\x82", "🙂"};
  return kLonger;
}

// The mask of a state by trying each token.
TokenBits Tried(CompiledGrammar* g, const TokenTrie& trie, GrammarState state) {
  TokenBits bits(trie.words());
  auto set = [&](TokenId id) { bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); };
  for (TokenId id = 0; id < trie.size(); ++id) {
    if (!trie.piece(id).empty() && !g->Advance(state, trie.piece(id))->dead()) set(id);
  }
  if (g->MayEnd(state)) {
    for (TokenId id : trie.ends()) set(id);
  }
  return bits;
}

void WalkAtRandom(CompiledGrammar* g, const TokenTrie& trie, uint32_t seed) {
  std::mt19937 random(seed);
  GrammarState state = g->start();
  std::string text;
  for (int step = 0; step < 40; ++step) {
    const auto mask = g->Mask(state);
    ASSERT_TRUE(mask.ok()) << text << ": " << mask.status();
    ASSERT_EQ((*mask)->words, Tried(g, trie, state)) << text;
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < trie.size(); ++id) {
      if ((*mask)->words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) ids.push_back(id);
    }
    ASSERT_EQ(ids.size(), (*mask)->allowed);
    EXPECT_EQ((*mask)->forced, ids.size() == 1 ? ids[0] : -1);
    const TokenId id = ids[random() % ids.size()];
    const GrammarState before = state;
    const auto next = g->Advance(state, id);
    ASSERT_TRUE(next.ok() && !next->dead()) << text << trie.piece(id);
    EXPECT_EQ(*g->Advance(before, id), *next);
    EXPECT_EQ(g->CachedAdvance(before, id), *next);
    state = *next;
    if (state.ended()) break;
    text += trie.piece(id);
  }
}

TEST(GrammarMasks, EqualWhatTryingEveryTokenGives) {
  const auto trie = testing::SmallVocabulary(Longer());
  const char* grammars[] = {
      "root ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\"\npair ::= str \":\" ws val\nstr ::= \"\\\"\" "
      "[^\"\\\\\\x00-\\x1f]* \"\\\"\"\n"
      "val ::= str | num | root | \"true\"\nnum ::= [0-9]+ (\".\" [0-9]+)?\nws ::= [ \\n]{0,3}\n",
      "root ::= sum\nsum ::= sum \"+\" num | num\nnum ::= [0-9]+ | \"(\" sum \")\"\n",
      "root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]{0,7} \"\\\"\"\n",
      "root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]{3,20} \"\\\"\" \"}\"\n",
      "root ::= line+\nline ::= [^\\n]+ \"\\n\"\n",
      "root ::= word (\" \" word)*\nword ::= .+\n",
      "root ::= item item item?\nitem ::= [^x\"\\\\]{2,4} | \"x\" item\n"};
  for (const char* text : grammars) {
    const auto g = testing::Compiled(GbnfGrammar(text), trie);
    ASSERT_NE(g, nullptr) << text;
    for (uint32_t seed = 0; seed < 30; ++seed) WalkAtRandom(g.get(), *trie, seed);
  }
  // Counters that tokens can't count out share their masks, those that they can don't.
  for (const char* pattern : {"[a-c]{1,20}", "(?:\\S+\\s+){0,40}\\S+", "(?:[ab]{2,3}){5,9}c", "(?:(?:ab){7,90}c?){3}",
                              "a{15,17}b", "(?:ab|a|bb)+(?:c|hello world)?", "é+|🙂{2}", "[^\"]*", ".{0,5}"}) {
    const auto g = testing::Compiled(RegexGrammar(pattern), trie);
    ASSERT_NE(g, nullptr) << pattern;
    for (uint32_t seed = 0; seed < 30; ++seed) WalkAtRandom(g.get(), *trie, seed);
  }
}

TEST(GrammarMasks, EndsAndForcedTokens) {
  const auto trie = testing::SmallVocabulary({});
  const TokenId end = 256;
  const auto g = testing::Compiled(RegexGrammar("ab?"), trie);
  ASSERT_NE(g, nullptr);
  EXPECT_EQ((*g->Mask(g->start()))->forced, 'a');
  const GrammarState a = *g->Advance(g->start(), TokenId{'a'});
  EXPECT_EQ((*g->Mask(a))->allowed, 2u);
  const GrammarState ab = *g->Advance(a, TokenId{'b'});
  EXPECT_EQ((*g->Mask(ab))->forced, end);
  EXPECT_TRUE(g->Advance(ab, end)->ended());
  EXPECT_TRUE(g->Advance(g->start(), end)->dead());
  EXPECT_TRUE(g->Advance(ab, TokenId{'b'})->dead());
  EXPECT_TRUE(g->Advance(*g->Advance(ab, end), TokenId{'a'})->dead());
  EXPECT_TRUE(absl::IsFailedPrecondition(g->Mask(*g->Advance(ab, end)).status()));
}

TEST(GrammarMasks, MasksAreKeptWithinTheirBytes) {
  const auto trie = testing::SmallVocabulary({});
  auto g = *CompiledGrammar::Make(*RegexGrammar("a{200}"), trie, {.mask_bytes = 2000});
  GrammarState state = g->start();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(g->Mask(state).ok());
    state = *g->Advance(state, TokenId{'a'});
    EXPECT_LE(g->size().mask_bytes, 2000u);
  }
  EXPECT_EQ(g->CachedMask(g->start()), nullptr);
  EXPECT_TRUE(g->Mask(g->start()).ok());
  EXPECT_NE(g->CachedMask(g->start()), nullptr);
}

TEST(GrammarMasks, AVocabularyWithoutTheByteIsRefused) {
  const auto trie = std::make_shared<TokenTrie>(std::vector<std::string>{"a", "b", ""}, std::vector<TokenId>{2});
  const auto g = CompiledGrammar::Make(*RegexGrammar("c"), trie);
  EXPECT_TRUE(absl::IsInvalidArgument(g.status()));
}

TEST(GrammarMasks, ABoundIsNamed) {
  Bounds bounds;
  bounds.states = 50;
  const auto g = testing::Compiled(GbnfGrammar("root ::= \"(\" root \")\" | \"x\"\n", bounds));
  ASSERT_NE(g, nullptr);
  const auto state = g->Advance(g->start(), std::string(100, '('));
  ASSERT_TRUE(absl::IsResourceExhausted(state.status()));
  EXPECT_THAT(std::string(state.status().message()), ::testing::HasSubstr("50 states"));
}

}  // namespace
}  // namespace gyre::grammar
