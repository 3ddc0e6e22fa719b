// Arrays and objects of JSON under limits: which items and members may still come, given those that came.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/grammar/expressions.h"

namespace gyre::grammar {

// What comes behind [. Immutable once it is in a grammar.
class ArrayItems : public Lazy {
 public:
  struct Place {
    RuleId plain = 0;                                 // an item
    RuleId counted = 0;                               // one that counts for "contains"
    bool counts = false;                              // there is such a rule
    std::vector<std::pair<uint32_t, ExprId>> values;  // instead of the rules, if no value may come twice: number, text
  };
  std::vector<Place> places;  // of items by index; the last is that of all others
  uint64_t min = 0, max = UINT64_MAX;
  uint64_t min_counted = 0, max_counted = UINT64_MAX;
  bool unique = false;
  ExprId space = kEpsilon;

  // The whole array.
  ExprId Whole(Expressions* e) const;
  ExprId Expand(Expressions* e, const State& state) const override;
  bool Nullable(const State&) const override { return false; }
  bool Regular() const override { return false; }
  bool Productive(const State& state, const std::vector<bool>& productive) const override;
  void Calls(std::vector<RuleId>* rules) const override;

 private:
  // State: index (up to where all are alike) with kBehind, items that counted or bits of the values, -.
  static constexpr uint64_t kBehind = uint64_t{1} << 63;  // an item was just before
  template <typename P>
  bool Possible(uint64_t index, uint64_t counted, const P& productive, size_t* looks) const;
  const Place& At(uint64_t index) const { return places[std::min<uint64_t>(index, places.size() - 1)]; }
  uint64_t Bounded(uint64_t index) const;
};

// The members of an object, behind its {; or the arguments of a call in another form.
class ObjectMembers : public Lazy {
 public:
  struct Member {
    ExprId name;  // with its quotes
    RuleId rule;
    bool required;
  };
  struct Free {
    ExprId name;  // with its quotes
    RuleId rule;
  };
  // What stands around members. A member ends the text only with `close`, which is not empty.
  struct Punctuation {
    ExprId open, colon, comma, close;
    ExprId space;  // behind a member, before a comma or the end
  };
  static Punctuation Json(Expressions* e, ExprId space);

  explicit ObjectMembers(const Punctuation& punctuation) : punctuation(punctuation) {}
  const Punctuation punctuation;
  std::vector<Member> fixed;  // in this order
  std::vector<Member> loose;  // behind them in any order, among the free ones
  std::vector<Free> free;
  uint64_t min = 0, max = UINT64_MAX;

  ExprId Whole(Expressions* e) const;
  ExprId Expand(Expressions* e, const State& state) const override;
  bool Nullable(const State&) const override { return false; }
  bool Regular() const override { return false; }
  bool Productive(const State& state, const std::vector<bool>& productive) const override;
  void Calls(std::vector<RuleId>* rules) const override;

 private:
  // State: index in fixed with kBehind, number of the set of loose ones that came, members so far.
  static constexpr uint64_t kBehind = uint64_t{1} << 63;
  using Set = std::vector<uint64_t>;  // bit i of word i/64
  uint64_t NumberOf(const Set& set) const;

  mutable std::vector<Set> sets_;  // grows as expressions do, under the same lock
  mutable absl::flat_hash_map<Set, uint64_t> numbers_;
};

}  // namespace gyre::grammar
