#include "coordinator/grammar/parser.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace gyre::grammar {

size_t Parser::Hash::operator()(StateId s) const {
  size_t h = 0;
  for (const Item& i : p->states_[s].kernel) h = absl::HashOf(h, i.rest, i.rule, i.origin);
  return h;
}

Parser::Parser(Grammar grammar) : grammar_(std::move(grammar)), ids_(64, Hash{this}, Equal{this}) {
  states_.emplace_back();  // kDead
  states_[kDead].next = std::make_unique<Row>();
  states_[kDead].next->fill(kDead);
  ids_.insert(kDead);
  start_ = At(grammar_.body(grammar_.root()), grammar_.root(), kOutside);
}

StateId Parser::At(ExprId rest, RuleId rule, StateId origin) { return Intern({{rest, rule, origin}}); }

StateId Parser::MakeNext(StateId state, uint8_t byte) {
  std::vector<Item> kernel;
  for (const Item& i : states_[state].items) {
    const ExprId rest = expressions().After(i.rest, byte);
    if (rest != kNothing) kernel.push_back({rest, i.rule, i.origin == kHere ? state : i.origin});
  }
  budget().Step(1 + states_[state].items.size() / 4);
  const StateId next = Intern(std::move(kernel));
  State& s = states_[state];
  if (s.next == nullptr) {
    s.next = std::make_unique<Row>();
    s.next->fill(kUnknown);
    budget().Memory(sizeof(Row));
  }
  if (!budget().passed()) (*s.next)[byte] = next;
  return next;
}

StateId Parser::Intern(std::vector<Item> kernel) {
  std::sort(kernel.begin(), kernel.end());
  kernel.erase(std::unique(kernel.begin(), kernel.end()), kernel.end());
  if (budget().passed()) return kDead;
  const auto id = static_cast<StateId>(states_.size());
  states_.emplace_back();
  states_[id].kernel = std::move(kernel);
  const auto [at, fresh] = ids_.insert(id);
  if (!fresh) {
    const StateId known = *at;
    states_.pop_back();
    return known;
  }
  Close(id);
  const State& s = states_[id];
  budget().Count("states of the parser", states_.size(), budget().bounds().states);
  budget().Memory(sizeof(State) + 16 + (s.kernel.size() + s.items.capacity()) * sizeof(Item));
  return budget().passed() ? kDead : id;
}

void Parser::Close(StateId id) {
  std::vector<Item> items = states_[id].kernel;
  absl::flat_hash_set<std::tuple<ExprId, RuleId, StateId>> seen;
  const bool large = items.size() > 16;
  auto add = [&](Item i) {
    if (seen.empty() && (large || items.size() > 16)) {
      for (const Item& k : items) seen.insert({k.rest, k.rule, k.origin});
    }
    if (!seen.empty()) {
      if (!seen.insert({i.rest, i.rule, i.origin}).second) return;
    } else if (std::find(items.begin(), items.end(), i) != items.end()) {
      return;
    }
    items.push_back(i);
  };
  Expressions& e = expressions();
  bool accepts = false;
  for (size_t at = 0; at < items.size(); ++at) {
    if (!budget().Step()) return;
    const Item item = items[at];
    if (e.Nullable(item.rest)) {
      if (item.origin == kOutside) {
        accepts = true;
      } else if (item.origin == kHere) {
        for (size_t i = 0; i < items.size(); ++i) {
          for (const FirstStep::Call& c : e.First(items[i].rest).calls) {
            if (c.rule == item.rule) add({c.rest, items[i].rule, items[i].origin});
          }
        }
      } else {
        for (const Item& caller : states_[item.origin].items) {
          for (const FirstStep::Call& c : e.First(caller.rest).calls) {
            if (c.rule == item.rule) {
              add({c.rest, caller.rule, caller.origin == kHere ? item.origin : caller.origin});
            }
          }
        }
      }
    }
    for (const FirstStep::Call& c : e.First(item.rest).calls) {
      // A call at the end of a rule goes on in the rule's name: what recurs on the right has no stack.
      if (c.rest == kEpsilon) {
        add({grammar_.body(c.rule), item.rule, item.origin});
      } else {
        add({grammar_.body(c.rule), c.rule, kHere});
      }
      if (grammar_.Nullable(c.rule)) add({c.rest, item.rule, item.origin});
    }
  }
  states_[id].items = std::move(items);
  states_[id].accepts = accepts;
}

}  // namespace gyre::grammar
