// Tokens that are forced because their bytes are: they are those that the tokenizer gives the whole text, whatever the
// text becomes.
#include "coordinator/grammar/forced_tokens.h"

#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "coordinator/grammar/choices.h"
#include "coordinator/grammar/gbnf.h"
#include "coordinator/grammar/json_schema.h"
#include "coordinator/grammar/regex.h"
#include "fmt/core.h"
#include "model/spm.h"
#include "model/weights.h"
#include "tests/testing/grammar_text.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"

namespace gyre::grammar {
namespace {

using ::testing::ElementsAre;

// Ids of bytes are 3 + the byte, then these pieces; earlier ones merge first.
std::unique_ptr<Tokenizer> Merging(const std::vector<std::string>& pieces) {
  Vocabulary v;
  const auto add = [&v](const std::string& piece, float score, TokenType type) {
    v.Add(piece, type);
    v.scores.push_back(score);
  };
  add("<unk>", 0, TokenType::kUnknown);
  add("<s>", 0, TokenType::kControl);
  add("</s>", 0, TokenType::kControl);
  for (int b = 0; b < 256; ++b) add(fmt::format("<0x{:02X}>", b), 0, TokenType::kByte);
  for (int c = '!'; c <= '~'; ++c) add(std::string(1, static_cast<char>(c)), -1000, TokenType::kNormal);
  add("\xE2\x96\x81", -1000, TokenType::kNormal);  // a space
  float score = 0;
  for (const std::string& piece : pieces) add(piece, score -= 1, TokenType::kNormal);
  v.bos = 1;
  v.eos = 2;
  v.end_ids = {2};
  auto made = MakeSpmTokenizer(std::move(v), {.add_space_prefix = true});
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

std::shared_ptr<CompiledGrammar> Jumping(StatusOr<Grammar> g, const std::shared_ptr<const TokenTrie>& trie,
                                         const Tokenizer& tokenizer) {
  EXPECT_TRUE(g.ok()) << g.status();
  auto made = CompiledGrammar::Make(*std::move(g), trie, {.tokenizer = &tokenizer});
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

// The pieces of the tokens that are forced one after the other.
std::vector<std::string> Forced(CompiledGrammar* g, const TokenTrie& trie, GrammarState state) {
  std::vector<std::string> pieces;
  for (;;) {
    const auto mask = g->Mask(state);
    if (!mask.ok() || (*mask)->forced < 0 || (*mask)->only_ends) return pieces;
    pieces.push_back(trie.piece((*mask)->forced));
    state = *g->Advance(state, (*mask)->forced);
  }
}

TEST(GrammarForced, ATokenIsForcedUnlessALongerOneMayTakeItsPlace) {
  const auto t = Merging({"na", "me", "name", "\":", "names", "er"});
  const auto trie = std::make_shared<const TokenTrie>(*t);
  const auto forced = [&](const char* pattern) {
    const auto g = Jumping(RegexGrammar(pattern), trie, *t);
    return Forced(g.get(), *trie, g->start());
  };
  EXPECT_THAT(forced("(name\"|name\")[0-9]"), ElementsAre("name", "\"")) << "no token goes on behind the quote";
  EXPECT_THAT(forced("name\"[:,]"), ElementsAre("name")) << "\": may be one token";
  EXPECT_THAT(forced("(name1|names)"), ElementsAre()) << "names is one token";
  EXPECT_THAT(forced("(name1|name2)"), ElementsAre("name"));
  EXPECT_THAT(forced("q(namer|name1)"), ElementsAre("q")) << "er may begin within name";
  EXPECT_THAT(forced("(nam[ex])"), ElementsAre()) << "na, or the beginning of name";
}

TEST(GrammarForced, WithoutJumpingAheadTheModelChooses) {
  const auto t = Merging({"na", "me", "name"});
  const auto trie = std::make_shared<const TokenTrie>(*t);
  const auto g = CompiledGrammar::Make(*RegexGrammar("name!"), trie, {.jump_ahead = false, .tokenizer = t.get()});
  ASSERT_TRUE(g.ok());
  EXPECT_FALSE((*g)->jumps_ahead());
  EXPECT_GE((*(*g)->Mask((*g)->start()))->allowed, 4u) << "name, na, n, and n as a byte";
}

// A text of the grammar that is drawn byte by byte.
std::string RandomRest(CompiledGrammar* g, GrammarState state, std::mt19937* random) {
  std::string text;
  // The loop stops only where the text might go on in several ways.
  while (text.size() < 16 || !g->ForcedBytes(state, 1).empty()) {
    if (g->MayEnd(state) && (*random)() % 4 == 0) break;
    std::string next;
    for (int byte = 0; byte < 256; ++byte) {
      // Characters of one byte, so that drawn texts look like texts.
      const auto c = static_cast<char>(byte);
      if ((byte < 0x80 || text.empty() || (text.back() & 0x80) != 0 || (*random)() % 50 == 0) &&
          !g->Advance(state, std::string_view(&c, 1))->dead()) {
        next += c;
      }
    }
    if (next.empty()) break;
    const char c = next[(*random)() % next.size()];
    text += c;
    state = *g->Advance(state, std::string_view(&c, 1));
  }
  return text;
}

// Whatever the text becomes, the tokenizer gives a forced token at its place. It is the same in every compilation.
void CheckForced(const Tokenizer& tokenizer, const std::shared_ptr<const TokenTrie>& trie,
                 const std::function<StatusOr<Grammar>()>& make, uint32_t seed, size_t* forced, size_t* fixed) {
  std::mt19937 random(seed);
  const auto g = Jumping(make(), trie, tokenizer), again = Jumping(make(), trie, tokenizer);
  GrammarState state = g->start();
  std::string text;
  for (int step = 0; step < 120; ++step) {
    const auto mask = g->Mask(state);
    ASSERT_TRUE(mask.ok()) << mask.status();
    if ((*mask)->only_ends) break;
    TokenId id = (*mask)->forced;
    if (id >= 0) {
      ++*forced;
      const std::string& piece = trie->piece(id);
      *fixed += piece.size();
      EXPECT_EQ((*again->Mask(*again->Advance(again->start(), text)))->forced, id) << text;
      const std::string bytes = g->ForcedBytes(state, piece.size());
      EXPECT_EQ(bytes, piece) << text;
      for (int n = 0; n < 3; ++n) {
        const std::string whole = piece + RandomRest(g.get(), *g->Advance(state, id), &random);
        const std::string before = piece.find_first_of(" \n\t") == 0 ? "x" : "\n";
        size_t length = 0;
        TokenId there = -1;
        const auto ids = tokenizer.Encode(before + whole, {});
        for (size_t i = 0; i < ids.size() && length <= before.size(); ++i) {
          if (length == before.size()) there = ids[i];
          length += tokenizer.Piece(ids[i], i == 0).size();
        }
        EXPECT_EQ(there, id) << text << " <" << piece << "> " << whole;
      }
    } else {
      std::vector<TokenId> ids;
      for (TokenId one = 0; one < trie->size(); ++one) {
        if ((*mask)->words[static_cast<size_t>(one) / 64] >> (one % 64) & 1) ids.push_back(one);
      }
      id = ids[random() % ids.size()];
    }
    state = *g->Advance(state, id);
    if (state.ended()) break;
    text += trie->piece(id);
  }
}

constexpr char kOrder[] = R"({"type": "object", "properties": {"customer_name": {"type": "string", "maxLength": 8},
    "delivery_address": {"type": "object", "properties": {"street_and_number": {"type": "string", "maxLength": 9},
    "größe": {"enum": ["sehr groß", "sehr klein", "mittel"]}}, "required": ["street_and_number", "größe"],
    "additionalProperties": false}, "number_of_items": {"type": "integer", "minimum": 1, "maximum": 900}},
    "required": ["customer_name", "delivery_address", "number_of_items"], "additionalProperties": false})";

std::vector<std::function<StatusOr<Grammar>()>> Grammars() {
  return {[] { return JsonSchemaGrammar(std::string_view(kOrder)); },
          [] { return JsonSchemaGrammar(std::string_view(kOrder), {.compact = true}); },
          [] { return RegexGrammar("The (quick|slow) brown foxes? jumps? over 1[0-9]{3} lazy dogs\\.{1,3}"); },
          [] { return GbnfGrammar("root ::= item+ \"done.\\n\"\nitem ::= \"- the item  called \" [a-z]+ \"\\n\"\n"); },
          [] {
            return ChoicesGrammar({"an apple tree", "an apple", "an appendix", "注文番号", "注文書"});
          }};
}

TEST(GrammarForced, TheTokenizerGivesTheSameTokensToTheWholeText) {
  const auto t = Merging(
      {"om",     "er",  "name", "cust",  "custom", "\xE2\x96\x81the", "number", "_of", "_name", "\":", "\",", "st",
       "street", "and", "jump", "jumps", "fox",    "foxes",           "apple",  "app", "tree",  ".."});
  const auto trie = std::make_shared<const TokenTrie>(*t);
  size_t forced = 0, fixed = 0;
  for (const auto& make : Grammars()) {
    for (uint32_t seed = 0; seed < 6; ++seed) CheckForced(*t, trie, make, seed, &forced, &fixed);
  }
  EXPECT_GT(forced, 300u);
}

TEST(GrammarForced, WithRealVocabularies) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "the tokenizers are not beside this checkout";
  for (const char* name : {"gpt-2", "llama3", "qwen3", "gemma3", "phi-3", "deepseek-llm"}) {
    if (testing::kSanitized && name != std::string_view("gpt-2") && name != std::string_view("phi-3")) continue;
    const auto t = OpenTokenizer(testing::SharedData(fmt::format("tokenizers/{}.vocab.gguf", name)));
    ASSERT_TRUE(t.ok()) << name << ": " << t.status();
    const auto trie = std::make_shared<const TokenTrie>(**t);
    size_t forced = 0, fixed = 0;
    for (const auto& make : Grammars()) CheckForced(**t, trie, make, 7, &forced, &fixed);
    fmt::print("{}: {} tokens of {} bytes were forced\n", name, forced, fixed);
    EXPECT_GT(forced, 20u) << name;
    EXPECT_GT(fixed, 2 * forced) << name;
  }
}

}  // namespace
}  // namespace gyre::grammar
