// Which tokens may follow a state.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "coordinator/grammar/parser.h"
#include "coordinator/grammar/token_trie.h"

namespace gyre::grammar {

// Makes the masks of one grammar. A state's mask is the union of its items' masks. An item's expression alone decides
// most of the tokens, whatever the state: these are kept by expression. The rest is walked in the parser. Of short
// tokens the expression is a simpler one with the same tokens (Near). Of an expression that goes on as another one
// behind most bytes, only the tokens that begin with the other bytes are walked.
// Not thread-safe: belongs to a CompiledGrammar and its lock.
class MaskMaker {
 public:
  MaskMaker(Parser* parser, const TokenTrie* trie) : parser_(*parser), trie_(trie) {}

  // bits: TokenTrie::words() of them, all cleared before. Ends are allowed where the text may end.
  void Make(StateId state, TokenBits* bits);

 private:
  struct Row {
    std::array<ExprId, 256> behind;  // each byte
    bool calls = false, nullable = false;
    uint64_t stays = 0;  // the kinds of bytes behind which it goes on as the same expression
  };
  struct Exit {
    uint32_t node;
    ExprId rest;  // kEpsilon: the rule ends here
  };
  // The tokens of an expression whatever comes behind it.
  struct Own {
    std::vector<TokenId> few;
    TokenBits many;                           // instead of few
    int clean = 0;                            // the clean tokens of so many characters too
    bool bare = false;                        // the exits at its end are left out, as nothing is behind it
    const TokenTrie::Nodes* nodes = nullptr;  // that the exits are of
    std::vector<Exit> exits;  // where a token goes on behind the expression's end, or in a rule that it calls
  };
  // How far clean characters may follow.
  struct CleanRun {
    int all = 0;             // any so many may; no more than kMostClean are looked at
    bool ends = false;       // no more than that may
    bool endless = false;    // any number may
    bool rule_ends = false;  // the rule may end among them
    bool returns = false;    // from each place among them one more leads back to the beginning, where the rule may end
    bool known = false;
  };

  struct Place {  // of an item
    RuleId rule;
    StateId origin;
  };

  void AddItem(ExprId rest, const Place& place, TokenBits* bits);
  enum Part : uint8_t { kShort, kLong };
  void AddOwn(const Own& own, const Place& place, StateId behind, bool bare, TokenBits* bits);
  const Own& OwnOf(ExprId e, bool bare, Part part);
  ExprId Near(ExprId e);
  ExprId NearAnd(ExprId e);
  ExprId NearCounters(ExprId e);
  ExprId WithoutBounds(ExprId e, size_t* room);
  const absl::flat_hash_set<ExprId>& RestsOf(ExprId character);
  size_t LeastBytes(ExprId e);
  size_t MostToEnd(ExprId e);
  size_t FarthestEnd(ExprId e);
  // An expression whose mask is known.
  struct Base {
    ExprId e;
    const Own* own;
  };
  // The base that has the most tokens in common with this expression; null: there is none.
  const Base* Likest(ExprId e, const Own& own);
  // Walks the nodes; those that begin with a byte behind which the base goes on in the same way are as there.
  void Walk(ExprId e, const Base* base, bool bare, TokenBits* bits, Own* own);
  void WalkBelow(ExprId e, uint32_t node, bool bare, TokenBits* bits, Own* own);
  static void AddTokens(const Own& own, const TokenTrie& trie, TokenBits* bits);
  void WalkStates(StateId from, const TokenTrie::Nodes& nodes, uint32_t node, TokenBits* bits);
  const CleanRun& RunOf(ExprId e);
  bool ReturnsTo(ExprId to, ExprId e);
  std::optional<CleanRun> FreeRun(ExprId e);
  bool Cleanly(ExprId e, int place, std::vector<ExprId>* next, bool* none, bool* rule_ends);
  const Row& RowOf(ExprId e);

  Parser& parser_;
  const TokenTrie* const trie_;                                  // null: no masks are made
  std::vector<std::unique_ptr<Row>> rows_;                       // by expression
  absl::flat_hash_map<ExprId, std::unique_ptr<Own>> own_[2][2];  // [part][1: nothing follows the rule's end]
  struct Bases {
    std::vector<Base> last;  // whose walks were long, at most kMostBases
    size_t next = 0;
  };
  absl::flat_hash_map<const TokenTrie::Nodes*, Bases> bases_;
  size_t walked_ = 0;  // nodes, by the last Walk
  absl::flat_hash_map<ExprId, CleanRun> runs_;
  absl::flat_hash_map<ExprId, ExprId> near_;
  absl::flat_hash_map<ExprId, size_t> least_, to_end_;
  absl::flat_hash_map<ExprId, absl::flat_hash_set<ExprId>> rests_;
  std::vector<StateId> path_;
  std::vector<const Row*> rows_path_;
};

}  // namespace gyre::grammar
