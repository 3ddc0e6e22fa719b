// Expressions over bytes and calls of rules, each stored once: regular expressions with intersection and complement,
// and the bodies of a grammar's rules. A lexer's state and a parser's place are both an expression: what may still
// come.
//
// Source: J. Brzozowski, Derivatives of Regular Expressions, 1964; S. Owens, J. Reppy, A. Turon, Regular-expression
// derivatives re-examined, 2009.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "coordinator/grammar/budget.h"

namespace gyre::grammar {

using ExprId = uint32_t;  // equal ids: equal expressions
using RuleId = uint32_t;
using ByteSet = std::bitset<256>;

inline constexpr ExprId kNothing = 0;  // no text at all
inline constexpr ExprId kEpsilon = 1;  // the empty text
inline constexpr uint32_t kUnbounded = UINT32_MAX;

// The first step of every text of an expression.
struct FirstStep {
  struct Bytes {
    uint8_t first, last;
    ExprId rest;
  };
  struct Call {
    RuleId rule;
    ExprId rest;
  };
  std::vector<Bytes> bytes;  // rising, disjoint; a byte of none leads to nothing
  std::vector<Call> calls;

  ExprId After(uint8_t byte) const {
    for (const Bytes& b : bytes) {
      if (byte <= b.last) return byte >= b.first ? b.rest : kNothing;
    }
    return kNothing;
  }
};

class Expressions;

// Makes expressions that are expanded only when the parser reaches them: a counter, or a set of names already seen.
class Lazy {
 public:
  using State = std::array<uint64_t, 3>;
  virtual ~Lazy() = default;
  // What the expression of this state is; never itself.
  virtual ExprId Expand(Expressions* e, const State& state) const = 0;
  // Whether it takes the empty text.
  virtual bool Nullable(const State& state) const = 0;
  // Whether it has no calls.
  virtual bool Regular() const = 0;
  // Whether it takes some text, if `productive` tells which rules do. Lazy expressions leave out what takes none.
  virtual bool Productive(const State&, const std::vector<bool>& productive) const {
    (void)productive;
    return true;
  }
  // Which rules Expand may ever call.
  virtual void Calls(std::vector<RuleId>* rules) const { (void)rules; }
};

// Not thread-safe: belongs to a grammar and its lock.
class Expressions {
 public:
  enum class Kind : uint8_t { kNothing, kEpsilon, kBytes, kText, kConcat, kAlt, kRepeat, kAnd, kNot, kCall, kLazy };

  explicit Expressions(const Bounds& bounds);
  Expressions(const Expressions&) = delete;
  Expressions& operator=(const Expressions&) = delete;

  ExprId Bytes(const ByteSet& set);
  ExprId Range(uint8_t first, uint8_t last);
  ExprId Text(std::string_view bytes);
  ExprId Concat(ExprId a, ExprId b);
  ExprId Concat(std::initializer_list<ExprId> parts);
  ExprId Alt(std::vector<ExprId> parts);
  ExprId Alt(ExprId a, ExprId b) { return Alt(std::vector<ExprId>{a, b}); }
  ExprId Optional(ExprId a) { return Alt(a, kEpsilon); }
  ExprId Repeat(ExprId a, uint32_t min, uint32_t max);
  ExprId Star(ExprId a) { return Repeat(a, 0, kUnbounded); }
  ExprId Call(RuleId rule);
  ExprId MakeLazy(const Lazy* lazy, const Lazy::State& state);
  // Of regular expressions only. And gives kNothing where no text is in all of them, which it searches for.
  ExprId And(std::vector<ExprId> parts);
  ExprId And(ExprId a, ExprId b) { return And(std::vector<ExprId>{a, b}); }
  ExprId Not(ExprId a);
  // Wherever so many of this expression stand in an intersection, the other parts' texts are rows of it too: it only
  // counts their characters.
  void MarkCharacter(ExprId e) { characters_.insert(e); }
  bool IsCharacter(ExprId e) const { return characters_.contains(e); }
  // Keeps a maker of lazy expressions as long as these expressions live.
  const Lazy* Own(std::unique_ptr<const Lazy> lazy);

  Kind kind(ExprId e) const { return nodes_[e].kind; }
  bool Nullable(ExprId e) const { return nodes_[e].nullable; }
  bool Regular(ExprId e) const { return nodes_[e].regular; }
  // Whether an intersection or a complement is in it.
  bool Searched(ExprId e) const { return nodes_[e].searched; }
  // Whether it takes some text; what has no And and no Not does unless it is kNothing.
  bool Alive(ExprId e);
  // Leads only to what takes some text. The reference lives as long as these expressions.
  const FirstStep& First(ExprId e);
  ExprId After(ExprId e, uint8_t byte) { return First(e).After(byte); }
  ExprId Expand(ExprId lazy);
  // Whether a regular expression takes the whole text.
  bool Takes(ExprId e, std::string_view text);
  // Whether some text is in both. Regular expressions only.
  bool Meet(ExprId a, ExprId b) { return And(a, b) != kNothing; }
  // Whether its texts are a finite set, as far as its form shows it.
  bool Finite(ExprId e) const;
  // All texts of a regular expression, if these are at most `most`; else false.
  bool List(ExprId e, size_t most, std::vector<std::string>* texts);

  // For a grammar's walk over what it has: parts of concatenations, alternatives and repetitions; a call's rule.
  std::vector<ExprId> Parts(ExprId e) const;
  RuleId rule(ExprId call) const { return nodes_[call].a; }
  size_t length(ExprId text) const { return nodes_[text].b; }
  uint32_t min(ExprId repeat) const { return nodes_[repeat].b; }
  uint32_t max(ExprId repeat) const { return nodes_[repeat].c; }
  bool LazyProductive(ExprId lazy, const std::vector<bool>& productive) const;
  const Lazy* lazy(ExprId e) const;
  // Rules that aren't productive are never called from here on.
  void SetProductive(std::vector<bool> productive) { productive_ = std::move(productive); }
  bool Productive(RuleId rule) const { return rule >= productive_.size() || productive_[rule]; }

  size_t size() const { return nodes_.size(); }
  Budget& budget() { return budget_; }

 private:
  struct Node {
    Kind kind;
    bool nullable = false, regular = true;
    bool searched = false;  // contains And or Not; it may match no text at all, and only a search shows that
    uint32_t a = 0, b = 0, c = 0;
  };
  struct Hash {
    const Expressions* e;
    size_t operator()(ExprId id) const { return e->HashOf(id); }
  };
  struct Equal {
    const Expressions* e;
    bool operator()(ExprId x, ExprId y) const { return e->Same(x, y); }
  };
  // Expressions by the byte that comes first, before they are put together.
  class Gathered;

  size_t HashOf(ExprId id) const;
  bool Same(ExprId x, ExprId y) const;
  ExprId Intern(const Node& node, size_t list_from);
  ExprId InternList(Kind kind, const std::vector<ExprId>& parts);
  void MergeRepeats(std::vector<ExprId>* parts);
  bool IsEverything(ExprId e) const;
  ExprId RawAnd(std::vector<ExprId> parts);
  const FirstStep& RawFirst(ExprId e);  // may lead to what takes no text
  std::unique_ptr<FirstStep> MakeFirst(ExprId e);
  void AndFirst(const Node& n, FirstStep* out);
  bool FindsText(ExprId e);
  // Every rest of a step, followed by `then`.
  void Follow(const FirstStep& step, ExprId then, FirstStep* out);
  const ExprId* list(const Node& n) const { return lists_.data() + n.a; }

  Budget budget_;
  std::vector<Node> nodes_;
  std::vector<ExprId> lists_;
  std::vector<ByteSet> sets_;
  absl::flat_hash_map<std::string, uint32_t> set_ids_;
  std::string texts_;  // of kText: a = where, b = how long
  absl::flat_hash_set<ExprId, Hash, Equal> ids_;
  std::vector<std::unique_ptr<FirstStep>> raw_firsts_, firsts_;
  std::vector<const Lazy*> lazies_;
  absl::flat_hash_map<const Lazy*, uint32_t> lazy_ids_;
  std::vector<Lazy::State> states_;  // of kLazy: a = which, b = state
  absl::flat_hash_map<std::pair<uint32_t, Lazy::State>, uint32_t> lazy_states_;
  std::vector<std::unique_ptr<const Lazy>> owned_;
  absl::flat_hash_map<ExprId, ExprId> expanded_;
  absl::flat_hash_map<ExprId, bool> finds_;
  std::vector<bool> productive_;
  absl::flat_hash_set<ExprId> characters_;
};

}  // namespace gyre::grammar
