#include "coordinator/grammar/expressions.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace gyre::grammar {

// Rests by the byte that comes first, until the rests of one byte are put together.
class Expressions::Gathered {
 public:
  void Add(const FirstStep& step) {
    for (const FirstStep::Bytes& b : step.bytes) {
      for (int byte = b.first; byte <= b.last; ++byte) rests_[static_cast<size_t>(byte)].push_back(b.rest);
    }
    calls_.insert(calls_.end(), step.calls.begin(), step.calls.end());
  }
  void Finish(Expressions* e, FirstStep* out) {
    const std::vector<ExprId>* last = nullptr;
    for (size_t byte = 0; byte < 256; ++byte) {
      std::vector<ExprId>& rests = rests_[byte];
      if (rests.empty()) {
        last = nullptr;
        continue;
      }
      if (last != nullptr && *last == rests) {
        out->bytes.back().last = static_cast<uint8_t>(byte);
        continue;
      }
      last = &rests;
      const ExprId rest = e->Alt(rests);
      FirstStep::Bytes* before = out->bytes.empty() ? nullptr : &out->bytes.back();
      if (before != nullptr && before->last + 1u == byte && before->rest == rest) {
        before->last = static_cast<uint8_t>(byte);
      } else if (rest != kNothing) {
        out->bytes.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), rest});
      } else {
        last = nullptr;
      }
    }
    std::sort(calls_.begin(), calls_.end(),
              [](const auto& x, const auto& y) { return std::pair(x.rule, x.rest) < std::pair(y.rule, y.rest); });
    for (const FirstStep::Call& c : calls_) {
      if (out->calls.empty() || out->calls.back().rule != c.rule || out->calls.back().rest != c.rest) {
        out->calls.push_back(c);
      }
    }
  }

 private:
  std::array<std::vector<ExprId>, 256> rests_;
  std::vector<FirstStep::Call> calls_;
};

Expressions::Expressions(const Bounds& bounds) : budget_(bounds), ids_(64, Hash{this}, Equal{this}) {
  nodes_.push_back({Kind::kNothing});
  nodes_.push_back({Kind::kEpsilon, true});
  ids_.insert(kNothing);
  ids_.insert(kEpsilon);
}

size_t Expressions::HashOf(ExprId id) const {
  const Node& n = nodes_[id];
  switch (n.kind) {
    case Kind::kText: return absl::HashOf(n.kind, std::string_view(texts_).substr(n.a, n.b));
    case Kind::kAlt:
    case Kind::kAnd: return absl::HashOf(n.kind, absl::Span<const ExprId>(list(n), n.b));
    default: return absl::HashOf(n.kind, n.a, n.b, n.c);
  }
}

bool Expressions::Same(ExprId x, ExprId y) const {
  const Node &m = nodes_[x], &n = nodes_[y];
  if (m.kind != n.kind || m.b != n.b) return false;
  switch (m.kind) {
    case Kind::kText: return std::string_view(texts_).substr(m.a, m.b) == std::string_view(texts_).substr(n.a, n.b);
    case Kind::kAlt:
    case Kind::kAnd: return std::equal(list(m), list(m) + m.b, list(n));
    default: return m.a == n.a && m.c == n.c;
  }
}

// `list_from`: what lies behind it in the lists, or in the texts, is this expression's own, and goes if it is known.
ExprId Expressions::Intern(const Node& node, size_t list_from) {
  if (!budget_.Step()) return kNothing;
  const auto id = static_cast<ExprId>(nodes_.size());
  nodes_.push_back(node);
  const auto [at, fresh] = ids_.insert(id);
  if (!fresh) {
    const ExprId known = *at;
    nodes_.pop_back();
    if (node.kind == Kind::kText) {
      texts_.resize(std::min(texts_.size(), list_from));
    } else if (node.kind == Kind::kAlt || node.kind == Kind::kAnd) {
      lists_.resize(list_from);
    }
    return known;
  }
  budget_.Count("expressions", nodes_.size(), budget_.bounds().expressions);
  const bool listed = node.kind == Kind::kAlt || node.kind == Kind::kAnd;
  budget_.Memory(sizeof(Node) + 12 + (listed ? node.b * sizeof(ExprId) : 0));
  return id;
}

ExprId Expressions::InternList(Kind kind, const std::vector<ExprId>& parts) {
  Node n{kind, kind == Kind::kAnd};
  n.a = static_cast<uint32_t>(lists_.size());
  n.b = static_cast<uint32_t>(parts.size());
  n.searched = kind == Kind::kAnd;
  for (ExprId p : parts) {
    const Node& part = nodes_[p];
    n.nullable = kind == Kind::kAnd ? n.nullable && part.nullable : n.nullable || part.nullable;
    n.regular = n.regular && part.regular;
    n.searched = n.searched || part.searched;
  }
  budget_.Step(parts.size() / 8);
  lists_.insert(lists_.end(), parts.begin(), parts.end());
  return Intern(n, n.a);
}

ExprId Expressions::Bytes(const ByteSet& set) {
  if (set.none()) return kNothing;
  const auto [at, fresh] = set_ids_.emplace(set.to_string(), static_cast<uint32_t>(sets_.size()));
  if (fresh) {
    sets_.push_back(set);
    budget_.Memory(sizeof(ByteSet) + 300);
  }
  return Intern({.kind = Kind::kBytes, .a = at->second}, 0);
}

ExprId Expressions::Range(uint8_t first, uint8_t last) {
  ByteSet set;
  for (int b = first; b <= last; ++b) set.set(static_cast<size_t>(b));
  return Bytes(set);
}

ExprId Expressions::Text(std::string_view bytes) {
  if (bytes.empty()) return kEpsilon;
  const size_t at = texts_.size();
  texts_ += bytes;
  budget_.Memory(bytes.size());
  return Intern({.kind = Kind::kText, .a = static_cast<uint32_t>(at), .b = static_cast<uint32_t>(bytes.size())}, at);
}

ExprId Expressions::Concat(ExprId a, ExprId b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (b == kEpsilon) return a;
  std::vector<ExprId> before;  // (x y) b is x (y b)
  while (nodes_[a].kind == Kind::kConcat) {
    before.push_back(nodes_[a].a);
    a = nodes_[a].b;
  }
  before.push_back(a);
  for (size_t i = before.size(); i-- > 0;) {
    if (before[i] == kEpsilon) continue;
    const Node &x = nodes_[before[i]], &y = nodes_[b];
    Node n{Kind::kConcat, x.nullable && y.nullable, x.regular && y.regular, x.searched || y.searched, before[i], b};
    b = Intern(n, 0);
    if (b == kNothing) return b;
  }
  return b;
}

ExprId Expressions::Concat(std::initializer_list<ExprId> parts) {
  ExprId all = kEpsilon;
  for (auto p = std::rbegin(parts); p != std::rend(parts); ++p) all = Concat(*p, all);
  return all;
}

// a{1,3} x | a{2,6} x is a{1,6} x: without it counters of counters have squares of states.
void Expressions::MergeRepeats(std::vector<ExprId>* parts) {
  struct Counted {
    ExprId of, then;
    uint32_t min, max;
  };
  std::vector<Counted> counted;
  std::vector<ExprId> others;
  for (ExprId p : *parts) {
    ExprId repeat = p, then = kEpsilon;
    if (nodes_[p].kind == Kind::kConcat) repeat = nodes_[p].a, then = nodes_[p].b;
    const Node& n = nodes_[repeat];
    if (n.kind == Kind::kRepeat) {
      counted.push_back({n.a, then, n.b, n.c});
    } else {
      others.push_back(p);
    }
  }
  if (counted.size() < 2) return;
  std::sort(counted.begin(), counted.end(), [](const Counted& x, const Counted& y) {
    return std::tuple(x.of, x.then, x.min) < std::tuple(y.of, y.then, y.min);
  });
  const size_t before = counted.size();
  size_t kept = 0;
  for (size_t i = 1; i < counted.size(); ++i) {
    Counted& last = counted[kept];
    const Counted& next = counted[i];
    if (last.of == next.of && last.then == next.then && (last.max == kUnbounded || next.min <= last.max + 1)) {
      last.max = std::max(last.max, next.max);
    } else {
      counted[++kept] = next;
    }
  }
  counted.resize(kept + 1);
  if (counted.size() == before) return;
  for (const Counted& c : counted) others.push_back(Concat(Repeat(c.of, c.min, c.max), c.then));
  std::sort(others.begin(), others.end());
  *parts = std::move(others);
}

ExprId Expressions::Alt(std::vector<ExprId> parts) {
  bool flat = true;
  for (ExprId p : parts) flat = flat && nodes_[p].kind != Kind::kAlt;
  if (!flat) {
    std::vector<ExprId> all;
    for (ExprId p : parts) {
      const Node& n = nodes_[p];
      if (n.kind == Kind::kAlt) {
        all.insert(all.end(), list(n), list(n) + n.b);
      } else {
        all.push_back(p);
      }
    }
    parts = std::move(all);
  }
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  if (!parts.empty() && parts[0] == kNothing) parts.erase(parts.begin());
  // An alternative that takes every text replaces the others. Otherwise a search for a text in the complement would
  // visit each state of the others.
  const auto everything = std::find_if(parts.begin(), parts.end(), [this](ExprId p) { return IsEverything(p); });
  if (everything != parts.end() &&
      std::all_of(parts.begin(), parts.end(), [this](ExprId p) { return nodes_[p].regular; })) {
    return *everything;
  }
  if (parts.size() > 1) MergeRepeats(&parts);
  if (parts.size() > 1) {
    ByteSet set;
    size_t sets = 0;
    bool nullable = false;
    for (ExprId p : parts) {
      if (nodes_[p].kind == Kind::kBytes) set |= sets_[nodes_[p].a], ++sets;
      nullable = nullable || (p != kEpsilon && nodes_[p].nullable);
    }
    if (sets > 1) {
      std::erase_if(parts, [this](ExprId p) { return nodes_[p].kind == Kind::kBytes; });
      parts.push_back(Bytes(set));
      std::sort(parts.begin(), parts.end());
    }
    if (nullable) std::erase(parts, kEpsilon);
  }
  if (parts.empty()) return kNothing;
  if (parts.size() == 1) return parts[0];
  return InternList(Kind::kAlt, parts);
}

ExprId Expressions::Repeat(ExprId a, uint32_t min, uint32_t max) {
  if (max == 0 || a == kEpsilon) return kEpsilon;
  if (a == kNothing) return min == 0 ? kEpsilon : kNothing;
  if (min > max) return kNothing;
  const Node& n = nodes_[a];
  if (n.nullable) min = 0;
  if (min == 1 && max == 1) return a;
  if (n.kind == Kind::kRepeat && n.b == 0 && n.c == kUnbounded) return a;
  return Intern({Kind::kRepeat, min == 0, n.regular, n.searched, a, min, max}, 0);
}

ExprId Expressions::Call(RuleId rule) { return Intern({.kind = Kind::kCall, .regular = false, .a = rule}, 0); }

ExprId Expressions::MakeLazy(const Lazy* lazy, const Lazy::State& state) {
  // Three words a state, as a list of its own: they are not expressions.
  const auto [at, fresh] = lazy_ids_.emplace(lazy, static_cast<uint32_t>(lazies_.size()));
  if (fresh) lazies_.push_back(lazy);
  const auto [known, added] = lazy_states_.emplace(std::pair(at->second, state), static_cast<uint32_t>(states_.size()));
  if (added) {
    states_.push_back(state);
    budget_.Memory(2 * sizeof(state) + 16);
  }
  return Intern({.kind = Kind::kLazy,
                 .nullable = lazy->Nullable(state),
                 .regular = lazy->Regular(),
                 .a = at->second,
                 .b = known->second},
                0);
}

const Lazy* Expressions::Own(std::unique_ptr<const Lazy> lazy) {
  owned_.push_back(std::move(lazy));
  return owned_.back().get();
}

const Lazy* Expressions::lazy(ExprId e) const { return lazies_[nodes_[e].a]; }

ExprId Expressions::Expand(ExprId e) {
  if (const auto at = expanded_.find(e); at != expanded_.end()) return at->second;
  const Lazy::State state = states_[nodes_[e].b];
  const ExprId made = lazy(e)->Expand(this, state);
  expanded_.emplace(e, made);
  budget_.Memory(16);
  return made;
}

bool Expressions::LazyProductive(ExprId e, const std::vector<bool>& productive) const {
  return lazy(e)->Productive(states_[nodes_[e].b], productive);
}

// Whether its form shows that it takes every text.
bool Expressions::IsEverything(ExprId e) const {
  const Node& n = nodes_[e];
  if (n.kind == Kind::kNot) return n.a == kNothing;
  if (n.kind != Kind::kRepeat || n.b != 0 || n.c != kUnbounded) return false;
  const Node& of = nodes_[n.a];
  return of.kind == Kind::kBytes && sets_[of.a].all();
}

ExprId Expressions::RawAnd(std::vector<ExprId> parts) {
  std::vector<ExprId> all;
  for (ExprId p : parts) {
    const Node& n = nodes_[p];
    if (p == kNothing) return kNothing;
    if (n.kind == Kind::kAnd) {
      all.insert(all.end(), list(n), list(n) + n.b);
    } else if (!IsEverything(p)) {
      all.push_back(p);
    }
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.empty()) return Not(kNothing);
  if (all.size() == 1) return all[0];
  if (all[0] == kEpsilon) {
    for (ExprId p : all) {
      if (!nodes_[p].nullable) return kNothing;
    }
    return kEpsilon;
  }
  ByteSet set;
  set.set();
  size_t sets = 0;
  for (ExprId p : all) {
    if (nodes_[p].kind == Kind::kBytes) set &= sets_[nodes_[p].a], ++sets;
  }
  if (sets == all.size()) return Bytes(set);
  return InternList(Kind::kAnd, all);
}

ExprId Expressions::And(std::vector<ExprId> parts) {
  const ExprId all = RawAnd(std::move(parts));
  return Alive(all) ? all : kNothing;
}

ExprId Expressions::Not(ExprId a) {
  const Node& n = nodes_[a];
  if (n.kind == Kind::kNot) return n.a;
  if (IsEverything(a)) return kNothing;
  return Intern({Kind::kNot, !n.nullable, true, true, a}, 0);
}

bool Expressions::Alive(ExprId e) {
  const Node& n = nodes_[e];
  if (!n.searched) return e != kNothing;
  if (n.nullable) return true;
  switch (n.kind) {
    case Kind::kConcat: {
      const ExprId a = n.a, b = n.b;
      return Alive(a) && Alive(b);
    }
    case Kind::kRepeat: return n.b == 0 || Alive(n.a);
    case Kind::kAlt: {
      const uint32_t from = n.a, count = n.b;
      for (uint32_t i = 0; i < count; ++i) {
        if (Alive(lists_[from + i])) return true;
      }
      return false;
    }
    default: return FindsText(e);
  }
}

bool Expressions::FindsText(ExprId e) {
  if (const auto at = finds_.find(e); at != finds_.end()) return at->second;
  struct Place {
    ExprId e;
    size_t next;
  };
  absl::flat_hash_set<ExprId> seen = {e};
  std::vector<Place> path = {{e, 0}};
  bool found = false;
  while (!path.empty() && !found) {
    Place& at = path.back();
    const FirstStep& step = RawFirst(at.e);
    if (!budget_.Step()) return false;
    if (at.next == step.bytes.size()) {
      path.pop_back();
      continue;
    }
    const ExprId rest = step.bytes[at.next++].rest;
    const Node& n = nodes_[rest];
    if (n.nullable || (!n.searched && rest != kNothing)) {
      found = true;
    } else if (rest != kNothing) {
      const auto known = finds_.find(rest);
      if (known != finds_.end()) {
        found = known->second;
      } else if (seen.insert(rest).second) {
        path.push_back({rest, 0});
      }
    }
  }
  if (found) {
    for (const Place& p : path) finds_[p.e] = true;
  } else {
    for (ExprId s : seen) finds_[s] = false;
  }
  budget_.Memory((found ? path.size() : seen.size()) * 16);
  return found;
}

void Expressions::Follow(const FirstStep& step, ExprId then, FirstStep* out) {
  ExprId last = kNothing, last_all = kNothing;
  for (const FirstStep::Bytes& b : step.bytes) {
    if (b.rest != last || last_all == kNothing) last = b.rest, last_all = Concat(b.rest, then);
    if (last_all != kNothing) out->bytes.push_back({b.first, b.last, last_all});
  }
  for (const FirstStep::Call& c : step.calls) out->calls.push_back({c.rule, Concat(c.rest, then)});
}

const FirstStep& Expressions::RawFirst(ExprId e) {
  if (e < raw_firsts_.size() && raw_firsts_[e] != nullptr) return *raw_firsts_[e];
  // A long row of what may be empty is not a deep recursion.
  std::vector<ExprId> row = {e};
  for (ExprId at = e; nodes_[at].kind == Kind::kConcat && nodes_[nodes_[at].a].nullable;) {
    at = nodes_[at].b;
    if (at < raw_firsts_.size() && raw_firsts_[at] != nullptr) break;
    row.push_back(at);
  }
  for (size_t i = row.size(); i-- > 0;) {
    std::unique_ptr<FirstStep> made = MakeFirst(row[i]);
    if (raw_firsts_.size() <= row[i]) raw_firsts_.resize(std::max<size_t>(row[i] + 1, nodes_.size()));
    budget_.Memory(64 + made->bytes.capacity() * sizeof(FirstStep::Bytes) +
                   made->calls.capacity() * sizeof(FirstStep::Call));
    raw_firsts_[row[i]] = std::move(made);
  }
  return *raw_firsts_[e];
}

std::unique_ptr<FirstStep> Expressions::MakeFirst(ExprId e) {
  auto out = std::make_unique<FirstStep>();
  const Node n = nodes_[e];
  switch (n.kind) {
    case Kind::kNothing:
    case Kind::kEpsilon: break;
    case Kind::kBytes: {
      const ByteSet& set = sets_[n.a];
      for (size_t b = 0; b < 256; ++b) {
        if (!set[b]) continue;
        const size_t first = b;
        while (b < 255 && set[b + 1]) ++b;
        out->bytes.push_back({static_cast<uint8_t>(first), static_cast<uint8_t>(b), kEpsilon});
      }
      break;
    }
    case Kind::kText: {
      const auto byte = static_cast<uint8_t>(texts_[n.a]);
      const ExprId rest =
          n.b == 1 ? kEpsilon : Intern({.kind = Kind::kText, .a = n.a + 1, .b = n.b - 1}, texts_.size());
      out->bytes.push_back({byte, byte, rest});
      break;
    }
    case Kind::kCall:
      if (Productive(n.a)) out->calls.push_back({n.a, kEpsilon});
      break;
    case Kind::kLazy: *out = RawFirst(Expand(e)); break;
    case Kind::kRepeat: {
      const uint32_t min = n.b == 0 ? 0 : n.b - 1, max = n.c == kUnbounded ? kUnbounded : n.c - 1;
      const FirstStep& first = RawFirst(n.a);
      Follow(first, Repeat(n.a, min, max), out.get());
      break;
    }
    case Kind::kConcat: {
      const FirstStep& first = RawFirst(n.a);
      if (!nodes_[n.a].nullable) {
        Follow(first, n.b, out.get());
        break;
      }
      FirstStep followed;
      Follow(first, n.b, &followed);
      Gathered all;
      all.Add(followed);
      all.Add(RawFirst(n.b));
      all.Finish(this, out.get());
      break;
    }
    case Kind::kAlt: {
      Gathered all;
      for (uint32_t i = 0; i < n.b; ++i) all.Add(RawFirst(lists_[n.a + i]));
      budget_.Step(n.b);
      all.Finish(this, out.get());
      break;
    }
    case Kind::kAnd:
    case Kind::kNot: AndFirst(n, out.get()); break;
  }
  return out;
}

void Expressions::AndFirst(const Node& n, FirstStep* out) {
  std::vector<const FirstStep*> steps;
  if (n.kind == Kind::kNot) {
    steps.push_back(&RawFirst(n.a));
  } else {
    for (uint32_t i = 0; i < n.b; ++i) steps.push_back(&RawFirst(lists_[n.a + i]));
  }
  std::bitset<257> edges;
  edges.set(0);
  for (const FirstStep* s : steps) {
    for (const FirstStep::Bytes& b : s->bytes) edges.set(b.first), edges.set(b.last + 1u);
  }
  std::vector<ExprId> rests, last;
  ExprId all = kNothing;
  for (size_t first = 0; first < 256;) {
    size_t end = first + 1;
    while (end < 256 && !edges[end]) ++end;
    rests.clear();
    for (const FirstStep* s : steps) rests.push_back(s->After(static_cast<uint8_t>(first)));
    if (rests != last) {
      all = n.kind == Kind::kNot ? Not(rests[0]) : RawAnd(rests);
      last = rests;
    }
    if (all != kNothing) {
      if (!out->bytes.empty() && out->bytes.back().rest == all && out->bytes.back().last + 1u == first) {
        out->bytes.back().last = static_cast<uint8_t>(end - 1);
      } else {
        out->bytes.push_back({static_cast<uint8_t>(first), static_cast<uint8_t>(end - 1), all});
      }
    }
    first = end;
  }
}

const FirstStep& Expressions::First(ExprId e) {
  const FirstStep& raw = RawFirst(e);
  if (!nodes_[e].searched && nodes_[e].kind != Kind::kLazy) return raw;
  if (e < firsts_.size() && firsts_[e] != nullptr) return *firsts_[e];
  auto made = std::make_unique<FirstStep>();
  for (const FirstStep::Bytes& b : raw.bytes) {
    if (Alive(b.rest)) made->bytes.push_back(b);
  }
  for (const FirstStep::Call& c : raw.calls) {
    if (Alive(c.rest)) made->calls.push_back(c);
  }
  budget_.Memory(64 + made->bytes.size() * sizeof(FirstStep::Bytes));
  if (firsts_.size() <= e) firsts_.resize(std::max<size_t>(e + 1, nodes_.size()));
  firsts_[e] = std::move(made);
  return *firsts_[e];
}

bool Expressions::Takes(ExprId e, std::string_view text) {
  for (char c : text) {
    e = RawFirst(e).After(static_cast<uint8_t>(c));
    if (e == kNothing) return false;
  }
  return Nullable(e);
}

bool Expressions::Finite(ExprId e) const {
  while (nodes_[e].kind == Kind::kConcat) {
    if (!Finite(nodes_[e].a)) return false;
    e = nodes_[e].b;
  }
  const Node& n = nodes_[e];
  switch (n.kind) {
    case Kind::kNothing:
    case Kind::kEpsilon:
    case Kind::kBytes:
    case Kind::kText: return true;
    case Kind::kAlt: return std::all_of(list(n), list(n) + n.b, [this](ExprId p) { return Finite(p); });
    case Kind::kRepeat: return n.c != kUnbounded && Finite(n.a);
    default: return false;
  }
}

bool Expressions::List(ExprId e, size_t most, std::vector<std::string>* texts) {
  struct Place {
    ExprId e;
    std::string text;
  };
  std::vector<Place> open = {{e, ""}};
  size_t looked = 0;
  while (!open.empty()) {
    const Place at = std::move(open.back());
    open.pop_back();
    if (++looked > 64 * most + 1024 || at.text.size() > 4096) return false;
    if (Nullable(at.e)) texts->push_back(at.text);
    if (texts->size() > most) return false;
    for (const FirstStep::Bytes& b : First(at.e).bytes) {
      for (int byte = b.first; byte <= b.last; ++byte) open.push_back({b.rest, at.text + static_cast<char>(byte)});
      if (open.size() > 64 * most + 1024) return false;
    }
  }
  return true;
}

std::vector<ExprId> Expressions::Parts(ExprId e) const {
  const Node& n = nodes_[e];
  switch (n.kind) {
    case Kind::kConcat: return {n.a, n.b};
    case Kind::kAlt:
    case Kind::kAnd: return {list(n), list(n) + n.b};
    case Kind::kRepeat:
    case Kind::kNot: return {n.a};
    default: return {};
  }
}

}  // namespace gyre::grammar
