#include "coordinator/grammar/masks.h"

#include <algorithm>

#include "coordinator/grammar/token_walk.h"

namespace gyre::grammar {
namespace {

constexpr int kAllClean = TokenTrie::kMostClean;
constexpr size_t kReach = TokenTrie::kMostShort;
constexpr size_t kMostBases = 8, kMostStates = 1024;

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

// The parts of a concatenation, one behind the other; of something else it alone.
std::vector<ExprId> RowOfParts(const Expressions& expressions, ExprId e) {
  std::vector<ExprId> row;
  while (expressions.kind(e) == Expressions::Kind::kConcat) {
    const std::vector<ExprId> parts = expressions.Parts(e);
    row.push_back(parts[0]);
    e = parts[1];
  }
  row.push_back(e);
  return row;
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
      if (FreeRun(part)) {
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
  AddOwn(OwnOf(Near(rest), bare, kShort), place, behind, bare, bits);
  if (trie_->long_nodes().size() > 1) AddOwn(OwnOf(rest, bare, kLong), place, behind, bare, bits);
}

void MaskMaker::AddOwn(const Own& own, const Place& place, StateId behind, bool bare, TokenBits* bits) {
  if (own.clean > 0) {
    const TokenBits& clean = trie_->Clean(own.clean);
    for (size_t w = 0; w < bits->size(); ++w) (*bits)[w] |= clean[w];
  }
  AddTokens(own, *trie_, bits);
  for (const Exit& exit : own.exits) {
    if (exit.rest != kEpsilon) {
      WalkStates(parser_.At(exit.rest, place.rule, place.origin), *own.nodes, exit.node, bits);
    } else if (!bare) {
      WalkStates(behind, *own.nodes, exit.node, bits);
    }
  }
}

const MaskMaker::Row& MaskMaker::RowOf(ExprId e) {
  if (rows_.size() <= e) rows_.resize(std::max<size_t>(e + 1, parser_.expressions().size()));
  std::unique_ptr<Row>& row = rows_[e];
  if (row == nullptr) {
    row = std::make_unique<Row>();
    row->behind.fill(kNothing);
    const FirstStep& first = parser_.expressions().First(e);
    for (const FirstStep::Bytes& b : first.bytes) {
      std::fill(row->behind.begin() + b.first, row->behind.begin() + b.last + 1, b.rest);
    }
    row->calls = !first.calls.empty();
    row->nullable = parser_.expressions().Nullable(e);
    uint64_t leaves = 0;
    for (size_t byte = 0; byte < 256; ++byte) {
      if (row->behind[byte] != e) leaves |= uint64_t{1} << TokenTrie::KindOf(static_cast<uint8_t>(byte));
    }
    row->stays = ~leaves;
    parser_.budget().Memory(sizeof(Row));
  }
  return *row;
}

// The least bytes of its texts, as far as the form shows it.
size_t MaskMaker::LeastBytes(ExprId e) {
  const Expressions& expressions = parser_.expressions();
  if (expressions.Nullable(e)) return 0;
  if (const auto known = least_.find(e); known != least_.end()) return known->second;
  size_t least = 1;
  switch (expressions.kind(e)) {
    case Expressions::Kind::kConcat: {
      least = 0;
      ExprId at = e;
      for (; expressions.kind(at) == Expressions::Kind::kConcat && least <= kReach;) {
        const std::vector<ExprId> parts = expressions.Parts(at);
        least += LeastBytes(parts[0]);
        at = parts[1];
      }
      if (expressions.kind(at) != Expressions::Kind::kConcat) least += LeastBytes(at);
      break;
    }
    case Expressions::Kind::kAlt: {
      least = SIZE_MAX;
      for (ExprId part : expressions.Parts(e)) least = std::min(least, LeastBytes(part));
      break;
    }
    case Expressions::Kind::kRepeat:
      least = LeastBytes(expressions.Parts(e)[0]);
      if (least <= kReach) least *= expressions.min(e);
      break;
    case Expressions::Kind::kCall: least = 0; break;  // the rule may take the empty text
    default: break;
  }
  return least_[e] = std::min(least, kReach + 1);
}

// The most bytes that any text of it needs to its end, wherever it is; SIZE_MAX: the form doesn't show it.
size_t MaskMaker::MostToEnd(ExprId e) {
  const Expressions& expressions = parser_.expressions();
  if (const auto known = to_end_.find(e); known != to_end_.end()) return known->second;
  const auto plus = [](size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; };
  // The least that a part needs from its beginning, by the same bound.
  const auto whole = [&](ExprId part) { return expressions.Nullable(part) ? 0 : MostToEnd(part); };
  size_t most = SIZE_MAX;
  const std::vector<ExprId> parts = expressions.Parts(e);
  switch (expressions.kind(e)) {
    case Expressions::Kind::kNothing:
    case Expressions::Kind::kEpsilon: most = 0; break;
    case Expressions::Kind::kBytes: most = 1; break;
    case Expressions::Kind::kText: most = expressions.length(e); break;
    case Expressions::Kind::kConcat: {
      const std::vector<ExprId> row = RowOfParts(expressions, e);
      if (row.size() > kReach) break;
      most = 0;
      size_t behind = 0;  // that all parts behind need from their beginning
      for (size_t i = row.size(); i-- > 0;) {
        most = std::max(most, plus(MostToEnd(row[i]), behind));
        behind = plus(whole(row[i]), behind);
      }
      break;
    }
    case Expressions::Kind::kAlt: {
      most = 0;
      for (ExprId part : parts) most = std::max(most, MostToEnd(part));
      break;
    }
    case Expressions::Kind::kRepeat: {
      const size_t min = expressions.min(e), one = MostToEnd(parts[0]);
      most = one > 0 && min > SIZE_MAX / 2 / one ? SIZE_MAX : plus(one, min * one);
      break;
    }
    case Expressions::Kind::kAnd:
    case Expressions::Kind::kNot: return FarthestEnd(e);
    default: break;
  }
  return to_end_[e] = most;
}

// MostToEnd by a search through the expression's states. SIZE_MAX: there are too many, or one calls a rule.
size_t MaskMaker::FarthestEnd(ExprId e) {
  Expressions& expressions = parser_.expressions();
  std::vector<ExprId> states = {e};
  absl::flat_hash_map<ExprId, uint32_t> numbers = {{e, 0}};
  std::vector<std::vector<uint32_t>> before(1);  // that lead to a state
  size_t most = 0;
  for (size_t at = 0; at < states.size() && most == 0; ++at) {
    const FirstStep& first = expressions.First(states[at]);
    if (states.size() > kMostStates || !first.calls.empty() || !parser_.budget().Step(16)) most = SIZE_MAX;
    for (const FirstStep::Bytes& b : first.bytes) {
      const auto [known, fresh] = numbers.emplace(b.rest, static_cast<uint32_t>(states.size()));
      if (fresh) states.push_back(b.rest), before.emplace_back();
      before[known->second].push_back(static_cast<uint32_t>(at));
    }
  }
  std::vector<uint32_t> level, next;
  std::vector<bool> seen(states.size());
  const auto reach = [&](uint32_t state) {
    if (!seen[state]) seen[state] = true, next.push_back(state);
  };
  for (uint32_t state = 0; most == 0 && state < states.size(); ++state) {
    if (expressions.Nullable(states[state])) reach(state);
  }
  for (size_t bytes = 0; !next.empty(); ++bytes) {
    most = bytes;
    level.swap(next);
    next.clear();
    for (const uint32_t state : level) {
      for (const uint32_t one : before[state]) reach(one);
    }
  }
  parser_.budget().Memory(states.size() * 16);
  // Each state that another one reaches is reached from the first state, too.
  for (const ExprId state : states) to_end_.emplace(state, most);
  return most;
}

// The expression without those upper bounds of its counters that no token can reach. Lowers *room to the longest text,
// in bytes, for which both are the same.
ExprId MaskMaker::WithoutBounds(ExprId e, size_t* room) {
  Expressions& expressions = parser_.expressions();
  switch (expressions.kind(e)) {
    case Expressions::Kind::kConcat: {
      const std::vector<ExprId> row = RowOfParts(expressions, e);
      if (row.size() > kReach) return e;
      ExprId all = kEpsilon;
      for (size_t i = row.size(); i-- > 0;) all = expressions.Concat(WithoutBounds(row[i], room), all);
      return all;
    }
    case Expressions::Kind::kAlt: {
      std::vector<ExprId> parts = expressions.Parts(e);
      for (ExprId& part : parts) part = WithoutBounds(part, room);
      return expressions.Alt(std::move(parts));
    }
    case Expressions::Kind::kRepeat: {
      const ExprId of = expressions.Parts(e)[0];
      const size_t bytes = expressions.max(e) * LeastBytes(of);
      if (expressions.max(e) == kUnbounded || bytes < kReach + kReach / 4) return e;
      *room = std::min(*room, bytes);
      return expressions.Repeat(of, expressions.min(e), kUnbounded);
    }
    default: return e;
  }
}

// An intersection without the bounds of counters takes the same tokens, if each text can end before it is as long as
// one of the bounds.
ExprId MaskMaker::NearCounters(ExprId e) {
  size_t room = SIZE_MAX;
  std::vector<ExprId> parts = parser_.expressions().Parts(e);
  for (ExprId& part : parts) part = WithoutBounds(part, &room);
  if (room == SIZE_MAX) return e;
  const ExprId near = parser_.expressions().And(std::move(parts));
  return MostToEnd(near) <= room - kReach ? near : e;
}

// What may be left of a character that has begun.
const absl::flat_hash_set<ExprId>& MaskMaker::RestsOf(ExprId character) {
  absl::flat_hash_set<ExprId>& rests = rests_[character];
  if (!rests.empty()) return rests;
  std::vector<ExprId> open = {character};
  while (!open.empty()) {
    const FirstStep& first = parser_.expressions().First(open.back());
    open.pop_back();
    for (const FirstStep::Bytes& b : first.bytes) {
      if (b.rest != kEpsilon && rests.insert(b.rest).second) open.push_back(b.rest);
    }
  }
  return rests;
}

// Where the length alone of the texts of one expression is bounded, and a token can't come near the bound, the bound is
// of no matter: the product of its states and the expression's is left alone.
ExprId MaskMaker::NearAnd(ExprId e) {
  Expressions& expressions = parser_.expressions();
  ExprId other = kNothing;
  size_t room = SIZE_MAX;
  for (ExprId part : expressions.Parts(e)) {
    std::vector<ExprId> row = RowOfParts(expressions, part);
    const ExprId counter = row.back();  // perhaps behind the rest of a character
    row.pop_back();
    const bool counts = expressions.kind(counter) == Expressions::Kind::kRepeat && expressions.min(counter) == 0 &&
                        row.size() < 16 && expressions.IsCharacter(expressions.Parts(counter)[0]);
    ExprId rest = kEpsilon;
    for (size_t i = counts ? row.size() : 0; i-- > 0;) rest = expressions.Concat(row[i], rest);
    if (counts && (rest == kEpsilon || RestsOf(expressions.Parts(counter)[0]).contains(rest))) {
      room = std::min<size_t>(room, expressions.max(counter));
    } else if (other == kNothing && !expressions.Searched(part)) {
      other = part;
    } else {
      return NearCounters(e);  // a complement's texts are not rows of characters by themselves
    }
  }
  if (other == kNothing || room == SIZE_MAX || room < kReach) return NearCounters(e);
  return MostToEnd(other) <= room - kReach ? Near(other) : NearCounters(e);
}

// An expression that takes the same short tokens, with counters that no token can count out left without an end. So
// states that differ only in such a counter have one mask.
ExprId MaskMaker::Near(ExprId e) {
  Expressions& expressions = parser_.expressions();
  if (const auto known = near_.find(e); known != near_.end()) return known->second;
  ExprId near = e;
  switch (expressions.kind(e)) {
    case Expressions::Kind::kConcat: {
      // What stands further behind than a token reaches is of no matter.
      std::vector<ExprId> row;
      size_t least = 0;
      ExprId at = e;
      while (expressions.kind(at) == Expressions::Kind::kConcat && least <= kReach) {
        const std::vector<ExprId> parts = expressions.Parts(at);
        row.push_back(Near(parts[0]));
        least += LeastBytes(parts[0]);
        at = parts[1];
      }
      near = expressions.kind(at) == Expressions::Kind::kConcat ? at : Near(at);
      for (size_t i = row.size(); i-- > 0;) near = expressions.Concat(row[i], near);
      break;
    }
    case Expressions::Kind::kAlt: {
      std::vector<ExprId> parts = expressions.Parts(e);
      for (ExprId& part : parts) part = Near(part);
      near = expressions.Alt(std::move(parts));
      break;
    }
    case Expressions::Kind::kRepeat: {
      const ExprId of = expressions.Parts(e)[0];
      const auto reach = static_cast<uint32_t>(kReach / std::max<size_t>(1, LeastBytes(of)) + 1);
      const uint32_t min = expressions.min(e), max = expressions.max(e);
      near = expressions.Repeat(Near(of), std::min(min, reach), max >= reach ? kUnbounded : max);
      break;
    }
    case Expressions::Kind::kAnd: near = NearAnd(e); break;
    default: break;
  }
  return near_[e] = near;
}

const MaskMaker::Own& MaskMaker::OwnOf(ExprId e, bool bare, Part part) {
  auto& all = own_[part][bare ? 1 : 0];
  if (const auto known = all.find(e); known != all.end()) return *known->second;
  auto own = std::make_unique<Own>();
  own->bare = bare;
  own->nodes = part == kLong ? &trie_->long_nodes() : &trie_->short_nodes();
  TokenBits bits(trie_->words());
  if (part == kShort) {
    const CleanRun run = RunOf(e);
    if (run.all > 0 && (bare || !run.rule_ends)) {
      own->clean = run.all;
      own->nodes = &trie_->Others(run.ends ? kAllClean : run.all);
    }
  }
  Walk(e, Likest(e, *own), bare, &bits, own.get());
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
  const Own& made = *(all[e] = std::move(own));
  if (walked_ * 4 > made.nodes->size()) {
    Bases& bases = bases_[made.nodes];
    if (bases.last.size() < kMostBases) bases.last.emplace_back();
    bases.last[bases.next++ % kMostBases] = {e, &made};
  }
  return made;
}

void MaskMaker::AddTokens(const Own& own, const TokenTrie& trie, TokenBits* bits) {
  for (TokenId id : own.few) trie.Mark(id, bits);
  for (size_t w = 0; w < own.many.size(); ++w) (*bits)[w] |= own.many[w];
}

const MaskMaker::Base* MaskMaker::Likest(ExprId e, const Own& own) {
  const TokenTrie::Nodes& nodes = *own.nodes;
  const Base* likest = nullptr;
  size_t least = nodes.size() / 2;
  for (const Base& base : bases_[own.nodes].last) {
    if (base.own->clean != own.clean || base.own->bare != own.bare) continue;
    const Row &row = RowOf(e), &other = RowOf(base.e);
    size_t different = 0;
    for (uint32_t at = 1; at < nodes.size() && different < least; at = nodes[at].end) {
      if (row.behind[nodes[at].byte] != other.behind[nodes[at].byte]) different += nodes[at].end - at;
    }
    if (different < least) least = different, likest = &base;
  }
  return likest;
}

void MaskMaker::Walk(ExprId e, const Base* base, bool bare, TokenBits* bits, Own* own) {
  const TokenTrie::Nodes& nodes = *own->nodes;
  walked_ = 0;
  if (base != nullptr) AddTokens(*base->own, *trie_, bits);
  const Row* row = &RowOf(e);
  const Row* other = base != nullptr ? &RowOf(base->e) : nullptr;
  size_t exit = 0;  // of the base
  for (uint32_t at = 1; at < nodes.size(); at = nodes[at].end) {
    if (base == nullptr) {
      WalkBelow(e, at, bare, bits, own);
      continue;
    }
    const std::vector<Exit>& exits = base->own->exits;
    const size_t first = exit;
    while (exit < exits.size() && exits[exit].node < nodes[at].end) ++exit;
    if (row->behind[nodes[at].byte] == other->behind[nodes[at].byte]) {
      own->exits.insert(own->exits.end(), exits.begin() + static_cast<long>(first),
                        exits.begin() + static_cast<long>(exit));
    } else {
      for (const TokenId token : nodes.Tokens(at)) trie_->Unmark(token, bits);
      WalkBelow(e, at, bare, bits, own);
    }
  }
  parser_.budget().Step(walked_ / 16);
}

// Walks a node of depth 1, and what is below, in the automaton of one expression. It leaves it where a rule is called.
void MaskMaker::WalkBelow(ExprId e, uint32_t node, bool bare, TokenBits* bits, Own* own) {
  const TokenTrie::Nodes& nodes = *own->nodes;
  if (rows_path_.empty()) rows_path_.resize(64);
  rows_path_[0] = &RowOf(e);
  const uint32_t end = nodes[node].end;
  for (uint32_t at = node; at < end;) {
    const TokenTrie::Node& n = nodes[at];
    const ExprId rest = rows_path_[n.depth - 1u]->behind[n.byte];
    ++walked_;
    if (rest == kNothing) {
      at = n.end;
      continue;
    }
    if (n.token >= 0) trie_->Mark(n.token, bits);
    if (n.end == at + 1) {
      ++at;
      continue;
    }
    const Row& row = RowOf(rest);
    if (row.calls) {
      own->exits.push_back({at, rest});
      at = n.end;
      continue;
    }
    // Such bytes change no state, so every token that consists of them may come.
    if ((nodes.Below(at) & ~row.stays) == 0 && (bare || !row.nullable)) {
      for (const TokenId token : nodes.Tokens(at)) trie_->Mark(token, bits);
      at = n.end;
      continue;
    }
    if (row.nullable && !bare) own->exits.push_back({at, kEpsilon});
    if (rows_path_.size() <= n.depth) rows_path_.resize(n.depth + 64u);
    rows_path_[n.depth] = &row;
    ++at;
  }
}

void MaskMaker::WalkStates(StateId from, const TokenTrie::Nodes& nodes, uint32_t node, TokenBits* bits) {
  WalkTokens(&parser_, from, nodes, node, &path_, [&](TokenId token) {
    trie_->Mark(token, bits);
    return true;
  });
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

// Whether some clean character leads from one expression to another.
bool MaskMaker::ReturnsTo(ExprId to, ExprId e) {
  const FirstStep& first = parser_.expressions().First(e);
  return std::any_of(first.bytes.begin(), first.bytes.end(), [to](const FirstStep::Bytes& b) {
    if (b.rest != to) return false;
    return std::any_of(CleanAt(0).begin(), CleanAt(0).end(), [&b](const CleanBytes& clean) {
      return clean.place == 0 && b.first <= clean.last && b.last >= clean.first;
    });
  });
}

// How far clean characters may follow in a text that must not be one of a finite set, as far as the form shows it: a
// run over the states would see every name that a free name must not be.
std::optional<MaskMaker::CleanRun> MaskMaker::FreeRun(ExprId e) {
  Expressions& expressions = parser_.expressions();
  if (expressions.kind(e) != Expressions::Kind::kConcat) return std::nullopt;
  const std::vector<ExprId> row = expressions.Parts(e);
  if (expressions.kind(row[0]) != Expressions::Kind::kAnd) return std::nullopt;
  // What comes behind is of no matter if no clean character begins it.
  const FirstStep& behind = expressions.First(row[1]);
  if (expressions.Nullable(row[1]) || !behind.calls.empty()) return std::nullopt;
  for (const FirstStep::Bytes& b : behind.bytes) {
    if (b.first != b.last || (b.first != '"' && b.first != '\\')) return std::nullopt;
  }
  std::vector<ExprId> others = expressions.Parts(row[0]);
  const size_t parts = others.size();
  std::erase_if(others, [&](ExprId part) {
    return expressions.kind(part) == Expressions::Kind::kNot && expressions.Finite(expressions.Parts(part)[0]);
  });
  if (others.size() == parts || others.empty()) return std::nullopt;
  // What has no end from any place of the run on has more texts than a finite set takes away.
  const CleanRun all = RunOf(expressions.And(std::move(others)));
  if (!all.endless && (all.all == 0 || !all.returns)) return std::nullopt;
  return CleanRun{.all = all.all, .endless = all.endless, .known = true};
}

const MaskMaker::CleanRun& MaskMaker::RunOf(ExprId e) {
  CleanRun& known = runs_[e];
  if (known.known) return known;
  CleanRun run{.known = true};
  if (const std::optional<CleanRun> free = FreeRun(e)) return runs_[e] = *free;
  absl::flat_hash_set<ExprId> seen;
  std::vector<ExprId> level = {e}, next;
  bool loops = false;  // then some run is longer than the shortest
  run.returns = parser_.expressions().Nullable(e);
  while (run.all < kAllClean) {
    bool all = true, none = true;
    next.clear();
    run.returns = run.returns && std::all_of(level.begin(), level.end(), [&](ExprId x) { return ReturnsTo(e, x); });
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
    if (next.size() > 64) {
      run.returns = false;
      break;
    }
    level.swap(next);
  }
  return runs_[e] = run;
}

}  // namespace gyre::grammar
