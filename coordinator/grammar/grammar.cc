#include "coordinator/grammar/grammar.h"

#include <functional>

namespace gyre::grammar {
namespace {

// A value of each expression from those of its parts, each computed once and without recursion: expressions of a
// grammar from outside are as deep as it likes.
template <typename T, typename F>
T FromParts(const Expressions& e, ExprId root, absl::flat_hash_map<ExprId, T>* known, F of) {
  std::vector<ExprId> open = {root};
  while (!open.empty()) {
    const ExprId at = open.back();
    if (known->contains(at)) {
      open.pop_back();
      continue;
    }
    const size_t before = open.size();
    const std::vector<ExprId> parts = e.Parts(at);
    for (ExprId p : parts) {
      if (!known->contains(p)) open.push_back(p);
    }
    if (open.size() > before) continue;
    std::vector<T> values;
    for (ExprId p : parts) values.push_back(known->at(p));
    known->emplace(at, of(at, parts, values));
    open.pop_back();
  }
  return known->at(root);
}

bool All(const std::vector<bool>& values) {
  for (bool v : values) {
    if (!v) return false;
  }
  return true;
}
bool Any(const std::vector<bool>& values) {
  for (bool v : values) {
    if (v) return true;
  }
  return false;
}

// The least set of rules for which `takes` holds of the body, given the set so far.
std::vector<bool> LeastRules(const std::vector<std::vector<RuleId>>& callers, size_t rules,
                             const std::function<bool(RuleId, const std::vector<bool>&)>& takes) {
  std::vector<bool> in(rules, false), queued(rules, true);
  std::vector<RuleId> open;
  for (size_t r = rules; r-- > 0;) open.push_back(static_cast<RuleId>(r));
  while (!open.empty()) {
    const RuleId r = open.back();
    open.pop_back();
    queued[r] = false;
    if (in[r] || !takes(r, in)) continue;
    in[r] = true;
    for (RuleId c : callers[r]) {
      if (!in[c] && !queued[c]) queued[c] = true, open.push_back(c);
    }
  }
  return in;
}

// Which rules each body calls, turned round: the callers of each rule.
std::vector<std::vector<RuleId>> Callers(const Expressions& e, const std::vector<ExprId>& bodies) {
  std::vector<std::vector<RuleId>> callers(bodies.size());
  for (size_t r = 0; r < bodies.size(); ++r) {
    absl::flat_hash_set<ExprId> seen;
    std::vector<ExprId> open = {bodies[r]};
    std::vector<RuleId> called;
    while (!open.empty()) {
      const ExprId at = open.back();
      open.pop_back();
      if (!seen.insert(at).second || (e.Regular(at) && e.kind(at) != Expressions::Kind::kLazy)) continue;
      if (e.kind(at) == Expressions::Kind::kCall) called.push_back(e.rule(at));
      if (e.kind(at) == Expressions::Kind::kLazy) e.lazy(at)->Calls(&called);
      for (ExprId p : e.Parts(at)) open.push_back(p);
    }
    for (RuleId c : called) callers[c].push_back(static_cast<RuleId>(r));
  }
  return callers;
}

}  // namespace

Status Grammar::Finish() {
  GYRE_RETURN_IF_ERROR(budget().status());
  FindProductive();
  GYRE_RETURN_IF_ERROR(budget().status());
  if (bodies_[root_] == kNothing) return InvalidArgument("grammar: no text can follow it");
  FindNullable();
  return budget().status();
}

void Grammar::FindProductive() {
  Expressions& e = *expressions_;
  auto takes = [&](ExprId root, const std::vector<bool>& productive) {
    absl::flat_hash_map<ExprId, bool> known;
    return FromParts<bool>(e, root, &known,
                           [&](ExprId at, const std::vector<ExprId>&, const std::vector<bool>& parts) -> bool {
                             switch (e.kind(at)) {
                               case Expressions::Kind::kNothing: return false;
                               case Expressions::Kind::kConcat: return All(parts);
                               case Expressions::Kind::kAlt: return Any(parts);
                               case Expressions::Kind::kRepeat: return e.min(at) == 0 || parts[0];
                               case Expressions::Kind::kCall: return productive[e.rule(at)];
                               case Expressions::Kind::kLazy: return e.LazyProductive(at, productive);
                               case Expressions::Kind::kAnd:
                               case Expressions::Kind::kNot: return e.Alive(at);
                               default: return true;
                             }
                           });
  };
  std::vector<bool> productive =
      LeastRules(Callers(e, bodies_), bodies_.size(),
                 [&](RuleId r, const std::vector<bool>& in) { return budget().Step() && takes(bodies_[r], in); });
  if (All(productive)) return;
  absl::flat_hash_map<ExprId, ExprId> known;
  for (ExprId& body : bodies_) {
    body = FromParts<ExprId>(e, body, &known,
                             [&](ExprId at, const std::vector<ExprId>& parts, const std::vector<ExprId>& kept) {
                               switch (e.kind(at)) {
                                 case Expressions::Kind::kCall: return productive[e.rule(at)] ? at : kNothing;
                                 case Expressions::Kind::kLazy: return e.LazyProductive(at, productive) ? at : kNothing;
                                 default: break;
                               }
                               if (kept == parts) return at;
                               switch (e.kind(at)) {
                                 case Expressions::Kind::kConcat: return e.Concat(kept[0], kept[1]);
                                 case Expressions::Kind::kAlt: return e.Alt(kept);
                                 case Expressions::Kind::kRepeat:
                                   return kept[0] == kNothing ? kEpsilon : e.Repeat(kept[0], e.min(at), e.max(at));
                                 default: return at;
                               }
                             });
  }
  for (size_t r = 0; r < bodies_.size(); ++r) {
    if (!productive[r]) bodies_[r] = kNothing;
  }
  e.SetProductive(std::move(productive));
}

void Grammar::FindNullable() {
  Expressions& e = *expressions_;
  nullable_ = LeastRules(Callers(e, bodies_), bodies_.size(), [&](RuleId r, const std::vector<bool>& in) {
    absl::flat_hash_map<ExprId, bool> known;
    return FromParts<bool>(e, bodies_[r], &known,
                           [&](ExprId at, const std::vector<ExprId>&, const std::vector<bool>& parts) -> bool {
                             switch (e.kind(at)) {
                               case Expressions::Kind::kConcat: return All(parts);
                               case Expressions::Kind::kAlt: return Any(parts);
                               case Expressions::Kind::kRepeat: return e.min(at) == 0 || parts[0];
                               case Expressions::Kind::kCall: return in[e.rule(at)];
                               default: return e.Nullable(at);
                             }
                           });
  });
}

}  // namespace gyre::grammar
