// Random schemas, and texts that are drawn hotly from the demo model's vocabulary: each obeys its schema, by a reading
// that shares nothing with the grammar. GYRE_SCHEMAS: how many; GYRE_SCHEMA_TEXTS: a file for {"schema", "text"} lines,
// which another validator may read (scripts/check_random_schemas).
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

#include "coordinator/grammar/json_schema.h"
#include "fmt/core.h"
#include "model/weights.h"
#include "tests/testing/grammar_text.h"
#include "tests/testing/small_schema.h"

namespace gyre::grammar {
namespace {

namespace json = boost::json;

// Draws from a mask with logits by chance at temperature 2. Of a long text what ends it grows likelier.
class HotDraw {
 public:
  HotDraw(const TokenTrie& trie, uint64_t seed) : random_(seed), weights_(1 << 14) {
    std::normal_distribution<double> logits(0, 3);
    for (double& w : weights_) w = std::exp(logits(random_) / 2);
    for (TokenId id = 0; id < trie.size(); ++id) {
      const std::string& piece = trie.piece(id);
      const bool closes = !piece.empty() && piece.find_first_not_of("\"]}") == std::string::npos;
      closes_string_.push_back(closes && piece[0] == '"');
      closes_.push_back(trie.IsEnd(id) || closes);
      if (piece == "z") letter_ = id;
    }
  }
  TokenId operator()(const TokenMask& mask, int step) {
    const size_t from = random_() % weights_.size();
    const double closing = std::exp(std::max(0, step - 30) / 8.0);
    double all = 0;
    const auto letter = static_cast<size_t>(letter_);
    const bool in_string = (mask.words[letter / 64] >> letter % 64 & 1) != 0;
    const std::vector<bool>& closes = in_string ? closes_string_ : closes_;
    ids_.clear();
    for (size_t w = 0; w < mask.words.size(); ++w) {
      for (uint64_t bits = mask.words[w]; bits != 0; bits &= bits - 1) {
        const size_t id = w * 64 + static_cast<size_t>(__builtin_ctzll(bits));
        all += weights_[(from + id) % weights_.size()] * (closes[id] ? closing : 1);
        ids_.push_back({static_cast<TokenId>(id), all});
      }
    }
    const double at = std::uniform_real_distribution<double>(0, all)(random_);
    const auto chosen =
        std::lower_bound(ids_.begin(), ids_.end(), at, [](const auto& id, double x) { return id.second < x; });
    return chosen == ids_.end() ? ids_.back().first : chosen->first;
  }

 private:
  std::mt19937_64 random_;
  std::vector<double> weights_;
  std::vector<bool> closes_, closes_string_;
  TokenId letter_ = 0;
  std::vector<std::pair<TokenId, double>> ids_;
};

TEST(GrammarRandomSchemas, HotTextsObeyThem) {
  const char* wanted = std::getenv("GYRE_SCHEMAS");
  const char* file = std::getenv("GYRE_SCHEMA_TEXTS");
  const int schemas = wanted != nullptr ? std::atoi(wanted) : 300;
  std::ofstream out;
  if (file != nullptr) out.open(file);
  const auto tokenizer = OpenTokenizer(GYRE_DEMO_MODEL);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto trie = std::make_shared<const TokenTrie>(**tokenizer);
  std::mt19937 random(2026);
  HotDraw draw(*trie, 2026);
  size_t texts = 0, refused = 0, unfinished = 0, forced = 0, tokens = 0, invalid = 0;
  for (int n = 0; n < schemas; ++n) {
    const json::value schema = testing::RandomSchema(&random, 3);
    auto g = JsonSchemaGrammar(std::string_view(json::serialize(schema)), {.compact = n % 3 == 0});
    if (!g.ok()) {
      ++refused;
      EXPECT_FALSE(absl::IsInternal(g.status())) << schema << "\n" << g.status();
      continue;
    }
    const auto made = CompiledGrammar::Make(*std::move(g), trie, {.tokenizer = tokenizer->get()});
    ASSERT_TRUE(made.ok()) << schema << "\n" << made.status();
    GrammarState state = (*made)->start();
    std::string text;
    for (int step = 0; step < 2000 && !state.ended(); ++step) {
      const auto mask = (*made)->Mask(state);
      ASSERT_TRUE(mask.ok()) << schema << "\n" << text << "\n" << mask.status();
      const TokenId id = draw(**mask, step);
      ++tokens;
      if ((*mask)->forced >= 0 && !(*mask)->only_ends) ++forced;
      state = *(*made)->Advance(state, id);
      ASSERT_FALSE(state.dead()) << schema << "\n" << text;
      if (!state.ended()) text += trie->piece(id);
    }
    if (!state.ended()) {
      ++unfinished;
      continue;
    }
    ++texts;
    json::error_code error;
    const json::value value = json::parse(text, error);
    const bool obeys = !error && testing::Obeys(schema, value);
    EXPECT_TRUE(obeys) << schema << "\n" << text;
    invalid += obeys ? 0 : 1;
    if (file != nullptr) out << json::serialize(json::object{{"schema", schema}, {"text", text}}) << "\n";
  }
  fmt::print("{} schemas: {} texts of {} tokens ({} forced), {} invalid, {} unfinished, {} refused\n", schemas, texts,
             tokens, forced, invalid, unfinished, refused);
  EXPECT_LE(unfinished * 20, texts) << "chance alone goes on, mostly with names that are free";
  EXPECT_GE(texts * 10, static_cast<size_t>(schemas) * 8);
  EXPECT_GT(forced * 20, tokens);
}

}  // namespace
}  // namespace gyre::grammar
