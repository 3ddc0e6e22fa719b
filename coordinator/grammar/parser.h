// An Earley parser over bytes whose states are numbers: a state is the set of places in rules where a text may be, each
// with the state in which its rule began. Equal sets have one number, so a state is a value: to go back is to keep it.
//
// Source: J. Earley, An Efficient Context-Free Parsing Algorithm, 1970; J. Aycock, R. N. Horspool, Practical Earley
// Parsing, 2002 (rules that take the empty text).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/grammar/grammar.h"

namespace gyre::grammar {

using StateId = uint32_t;
inline constexpr StateId kDead = 0;  // no text goes on from here

// Not thread-safe: belongs to a CompiledGrammar and its lock.
class Parser {
 public:
  // A place in a rule.
  struct Item {
    ExprId rest;  // what is still to come of the rule
    RuleId rule;
    StateId origin;  // where the rule began; kHere: in this very state; kOutside: it is the root
    auto operator<=>(const Item&) const = default;
  };
  static constexpr StateId kHere = UINT32_MAX, kOutside = UINT32_MAX - 1;

  // REQUIRES: Grammar::Finish was OK.
  explicit Parser(Grammar grammar);

  StateId start() const { return start_; }
  // kDead: the byte can't follow, or a bound is passed (budget()).
  StateId Next(StateId state, uint8_t byte) {
    const Row* row = states_[state].next.get();
    const StateId next = row != nullptr ? (*row)[byte] : kUnknown;
    return next != kUnknown ? next : MakeNext(state, byte);
  }
  StateId Next(StateId state, std::string_view bytes) {
    for (char c : bytes) state = Next(state, static_cast<uint8_t>(c));
    return state;
  }
  // Whether the text may end here.
  bool Accepts(StateId state) const { return states_[state].accepts; }
  const std::vector<Item>& items(StateId state) const { return states_[state].items; }
  // The state of a text at one place only.
  StateId At(ExprId rest, RuleId rule, StateId origin);

  Expressions& expressions() { return grammar_.expressions(); }
  Budget& budget() { return grammar_.budget(); }
  size_t states() const { return states_.size(); }

 private:
  using Row = std::array<StateId, 256>;
  static constexpr StateId kUnknown = UINT32_MAX;
  struct State {
    std::vector<Item> kernel;  // what a byte led to; it decides the other items
    std::vector<Item> items;   // all
    std::unique_ptr<Row> next;
    bool accepts = false;
  };
  struct Hash {
    const Parser* p;
    size_t operator()(StateId s) const;
  };
  struct Equal {
    const Parser* p;
    bool operator()(StateId x, StateId y) const { return p->states_[x].kernel == p->states_[y].kernel; }
  };

  StateId MakeNext(StateId state, uint8_t byte);
  StateId Intern(std::vector<Item> kernel);
  void Close(StateId id);

  Grammar grammar_;
  std::vector<State> states_;
  absl::flat_hash_set<StateId, Hash, Equal> ids_;
  StateId start_ = kDead;
};

}  // namespace gyre::grammar
