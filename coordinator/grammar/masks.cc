#include "coordinator/grammar/masks.h"

#include <algorithm>

namespace gyre::grammar {
namespace {

constexpr int kAllClean = TokenTrie::kMostClean;

// The bytes of clean characters, as an automaton: place 0 is between characters.
struct CleanBytes {
  uint8_t first, last;
  int place;
};
const std::vector<CleanBytes>& CleanAt(int place) {
  static const std::vector<CleanBytes> kPlaces[] = {{{0x20, 0x21, 0},
                                                     {0x23, 0x5B, 0},
                                                     {0x5D, 0x7F, 0},
                                                     {0xC2, 0xDF, 1},
                                                     {0xE0, 0xE0, 2},
                                                     {0xE1, 0xEC, 3},
                                                     {0xED, 0xED, 4},
                                                     {0xEE, 0xEF, 3},
                                                     {0xF0, 0xF0, 5},
                                                     {0xF1, 0xF3, 6},
                                                     {0xF4, 0xF4, 7}},
                                                    {{0x80, 0xBF, 0}},
                                                    {{0xA0, 0xBF, 1}},
                                                    {{0x80, 0xBF, 1}},
                                                    {{0x80, 0x9F, 1}},
                                                    {{0x90, 0xBF, 3}},
                                                    {{0x80, 0xBF, 3}},
                                                    {{0x80, 0x8F, 3}}};
  return kPlaces[place];
}

}  // namespace

void MaskMaker::Make(StateId state, TokenBits* bits) {
  if (parser_.Accepts(state)) {
    for (TokenId end : trie_->ends()) (*bits)[static_cast<size_t>(end) / 64] |= uint64_t{1} << (end % 64);
  }
  const std::vector<Parser::Item> items = parser_.items(state);
  for (const Parser::Item& item : items) {
    if (parser_.expressions().First(item.rest).bytes.empty()) continue;
    const Place place = {item.rule, item.origin == Parser::kHere ? state : item.origin};
    if (parser_.expressions().kind(item.rest) != Expressions::Kind::kAlt) {
      AddItem(item.rest, place, bits);
      continue;
    }
    // A free name is quick alone, and would be slow among the names that are listed.
    std::vector<ExprId> others;
    for (ExprId part : parser_.expressions().Parts(item.rest)) {
      if (EndlesslyClean(part)) {
        AddItem(part, place, bits);
      } else {
        others.push_back(part);
      }
    }
    const ExprId rest = parser_.expressions().Alt(std::move(others));
    if (rest != kNothing) AddItem(rest, place, bits);
  }
}

void MaskMaker::AddItem(ExprId rest, const Place& place, TokenBits* bits) {
  // What comes where the rule ends.
  const StateId behind = parser_.At(kEpsilon, place.rule, place.origin);
  bool bare = true;
  for (const Parser::Item& i : parser_.items(behind)) {
    bare = bare && parser_.expressions().First(i.rest).bytes.empty();
  }
  const Own& own = OwnOf(rest, bare);
  if (own.clean > 0) {
    const TokenBits& clean = trie_->Clean(own.clean);
    for (size_t w = 0; w < bits->size(); ++w) (*bits)[w] |= clean[w];
  }
  for (TokenId id : own.few) trie_->Mark(id, bits);
  for (size_t w = 0; w < own.many.size(); ++w) (*bits)[w] |= own.many[w];
  const TokenTrie::Nodes& nodes = own.in_unclean ? trie_->unclean() : trie_->nodes();
  for (const Exit& exit : own.exits) {
    if (exit.rest != kEpsilon) {
      WalkStates(parser_.At(exit.rest, place.rule, place.origin), nodes, exit.node, bits);
    } else if (!bare) {
      WalkStates(behind, nodes, exit.node, bits);
    }
  }
}

const MaskMaker::Row& MaskMaker::RowOf(ExprId e) {
  if (rows_.size() <= e) rows_.resize(std::max<size_t>(e + 1, parser_.expressions().size()));
  std::unique_ptr<Row>& row = rows_[e];
  if (row == nullptr) {
    row = std::make_unique<Row>();
    row->fill(kNothing);
    for (const FirstStep::Bytes& b : parser_.expressions().First(e).bytes) {
      std::fill(row->begin() + b.first, row->begin() + b.last + 1, b.rest);
    }
    parser_.budget().Memory(sizeof(Row));
  }
  return *row;
}

const MaskMaker::Own& MaskMaker::OwnOf(ExprId e, bool bare) {
  std::unique_ptr<Own>& known = own_[bare ? 1 : 0][e];
  if (known != nullptr) return *known;
  auto own = std::make_unique<Own>();
  const CleanRun run = RunOf(e);
  const TokenTrie::Nodes* nodes = &trie_->nodes();
  TokenBits bits(trie_->words());
  if (run.all > 0 && (bare || !run.rule_ends)) {
    own->clean = run.all;
    if (run.ends || run.all == kAllClean) {
      own->in_unclean = true;
      nodes = &trie_->unclean();
    }
  }
  Walk(e, *nodes, &bits, own.get());
  size_t count = 0;
  for (uint64_t w : bits) count += static_cast<size_t>(__builtin_popcountll(w));
  if (count <= 512) {
    for (size_t w = 0; w < bits.size(); ++w) {
      for (uint64_t rest = bits[w]; rest != 0; rest &= rest - 1) {
        own->few.push_back(static_cast<TokenId>(w * 64 + static_cast<size_t>(__builtin_ctzll(rest))));
      }
    }
  } else {
    own->many = std::move(bits);
  }
  parser_.budget().Memory(sizeof(Own) + own->few.size() * 4 + own->many.size() * 8 + own->exits.size() * sizeof(Exit));
  // The walk may have moved the map.
  return *(own_[bare ? 1 : 0][e] = std::move(own));
}

// Walks the nodes in the automaton of one expression. It leaves it where a rule is called.
void MaskMaker::Walk(ExprId e, const TokenTrie::Nodes& nodes, TokenBits* bits, Own* own) {
  Expressions& expressions = parser_.expressions();
  std::vector<const Row*> path(64);
  path[0] = &RowOf(e);
  size_t steps = 0;
  for (uint32_t at = 1; at < nodes.size();) {
    const TokenTrie::Node& node = nodes[at];
    const ExprId rest = (*path[node.depth - 1u])[node.byte];
    ++steps;
    if (rest == kNothing) {
      at = node.end;
      continue;
    }
    if (node.token >= 0) trie_->Mark(node.token, bits);
    if (node.end == at + 1) {
      ++at;
      continue;
    }
    if (!expressions.First(rest).calls.empty()) {
      own->exits.push_back({at, rest});
      at = node.end;
      continue;
    }
    if (expressions.Nullable(rest)) own->exits.push_back({at, kEpsilon});
    if (path.size() <= node.depth) path.resize(node.depth + 64u);
    path[node.depth] = &RowOf(rest);
    ++at;
  }
  parser_.budget().Step(steps / 16);
}

void MaskMaker::WalkStates(StateId from, const TokenTrie::Nodes& nodes, uint32_t node, TokenBits* bits) {
  const size_t above = nodes[node].depth;
  if (path_.empty()) path_.resize(64);
  path_[0] = from;
  const uint32_t end = nodes[node].end;
  for (uint32_t at = node + 1; at < end;) {
    const TokenTrie::Node& n = nodes[at];
    const size_t depth = n.depth - above;
    const StateId state = parser_.Next(path_[depth - 1], n.byte);
    if (state == kDead) {
      at = n.end;
      continue;
    }
    if (n.token >= 0) trie_->Mark(n.token, bits);
    if (path_.size() <= depth) path_.resize(depth + 64);
    path_[depth] = state;
    ++at;
  }
}

// Adds to `next` where each clean character leads. False: one may not follow (none: not one may), or a rule is called.
bool MaskMaker::Cleanly(ExprId e, int place, std::vector<ExprId>* next, bool* none, bool* rule_ends) {
  Expressions& expressions = parser_.expressions();
  const FirstStep& first = expressions.First(e);
  if (!first.calls.empty()) return *none = false;
  bool all = true;
  for (const CleanBytes& clean : CleanAt(place)) {
    int covered = clean.first;
    for (const FirstStep::Bytes& b : first.bytes) {
      if (b.last < clean.first || b.first > clean.last) continue;
      if (b.first > covered) all = false;
      covered = b.last + 1;
      *none = false;
      if (expressions.Nullable(b.rest)) *rule_ends = true;
      if (clean.place == 0) {
        next->push_back(b.rest);
      } else if (!Cleanly(b.rest, clean.place, next, none, rule_ends)) {
        all = false;
      }
    }
    if (covered <= clean.last) all = false;
    if (!all && !*none) return false;
  }
  return all;
}

// Whether clean characters may follow without end and without the rule's end, as far as the form shows it: a run over
// the states would see every name that a free name must not be.
bool MaskMaker::EndlesslyClean(ExprId e) {
  Expressions& expressions = parser_.expressions();
  ExprId first = e;
  if (expressions.kind(e) == Expressions::Kind::kConcat) {
    const std::vector<ExprId> parts = expressions.Parts(e);
    first = parts[0];
    // What comes behind is of no matter if no clean character begins it.
    const FirstStep& behind = expressions.First(parts[1]);
    if (expressions.Nullable(parts[1]) || !behind.calls.empty()) return false;
    for (const FirstStep::Bytes& b : behind.bytes) {
      if (b.first != b.last || (b.first != '"' && b.first != '\\')) return false;
    }
  } else {
    return false;
  }
  if (expressions.kind(first) != Expressions::Kind::kAnd) return false;
  ExprId all = kNothing;
  for (ExprId part : expressions.Parts(first)) {
    if (expressions.kind(part) == Expressions::Kind::kNot) {
      if (!expressions.Finite(expressions.Parts(part)[0])) return false;
    } else if (all != kNothing) {
      return false;
    } else {
      all = part;
    }
  }
  // What has no end has more texts than a finite set takes away.
  return all != kNothing && RunOf(all).endless;
}

const MaskMaker::CleanRun& MaskMaker::RunOf(ExprId e) {
  CleanRun& known = runs_[e];
  if (known.known) return known;
  CleanRun run{.known = true};
  if (EndlesslyClean(e)) {
    run.all = kAllClean;
    run.endless = true;
    return runs_[e] = run;
  }
  absl::flat_hash_set<ExprId> seen;
  std::vector<ExprId> level = {e}, next;
  bool loops = false;  // then some run is longer than the shortest
  while (run.all < kAllClean) {
    bool all = true, none = true;
    next.clear();
    for (ExprId x : level) {
      seen.insert(x);
      all = Cleanly(x, 0, &next, &none, &run.rule_ends) && all;
      if (!all && !none) break;
    }
    if (!all) {
      run.ends = none && !loops;
      break;
    }
    ++run.all;
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    loops = std::erase_if(next, [&](ExprId x) { return seen.contains(x); }) > 0 || loops;
    if (next.empty()) {
      run.all = kAllClean;
      run.endless = true;
      break;
    }
    if (next.size() > 64) break;
    level.swap(next);
  }
  return runs_[e] = run;
}

}  // namespace gyre::grammar
