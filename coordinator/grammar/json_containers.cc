#include "coordinator/grammar/json_containers.h"

#include <algorithm>

namespace gyre::grammar {

ExprId ArrayItems::Whole(Expressions* e) const {
  return e->Concat({e->Text("["), space, e->MakeLazy(this, {0, 0, 0})});
}

uint64_t ArrayItems::Bounded(uint64_t index) const {
  const uint64_t alike = std::max({static_cast<uint64_t>(places.size() - 1), min, max == UINT64_MAX ? 0 : max});
  return std::min(index, alike);
}

// Whether an array that has come so far can end, with the rules that take some text.
template <typename P>
bool ArrayItems::Possible(uint64_t index, uint64_t counted, const P& productive, size_t* looks) const {
  if (unique) {
    if (index >= min) return true;
    if (++*looks > 10'000) return false;
    for (const auto& [number, text] : At(index).values) {
      const uint64_t bit = uint64_t{1} << number;
      if ((counted & bit) == 0 && Possible(index + 1, counted | bit, productive, looks)) return true;
    }
    return false;
  }
  // An item that counts is better as long as some are wanted, and worse from then on.
  while (index < min || counted < min_counted) {
    if (index >= max) return false;
    const Place& place = At(index);
    const bool may_count = place.counts && counted < max_counted && productive(place.counted);
    const bool may_not = productive(place.plain);
    if (index >= places.size() - 1) {
      const uint64_t wanted = counted < min_counted ? min_counted - counted : 0;
      if (wanted > 0 && (!may_count || wanted > max - index)) return false;
      const uint64_t others = min > index + wanted ? min - index - wanted : 0;
      return others == 0 || may_not || (may_count && others <= max_counted - counted - wanted);
    }
    if (may_count && (counted < min_counted || !may_not)) {
      ++counted;
    } else if (!may_not) {
      return false;
    }
    ++index;
  }
  return true;
}

ExprId ArrayItems::Expand(Expressions* e, const State& state) const {
  const bool behind = (state[0] & kBehind) != 0;
  const uint64_t index = state[0] & ~kBehind, counted = state[1];
  auto productive = [e](RuleId r) { return e->Productive(r); };
  std::vector<ExprId> all, items;
  if (index >= min && (unique || counted >= min_counted)) all.push_back(e->Text("]"));
  auto item = [&](ExprId text, uint64_t next_counted) {
    size_t looks = 0;
    if (!Possible(index + 1, next_counted, productive, &looks)) return;
    items.push_back(e->Concat(text, e->MakeLazy(this, {Bounded(index + 1) | kBehind, next_counted, 0})));
  };
  if (index < max) {
    const Place& place = At(index);
    if (unique) {
      for (const auto& [number, text] : place.values) {
        const uint64_t bit = uint64_t{1} << number;
        if ((counted & bit) == 0) item(text, counted | bit);
      }
    } else {
      if (productive(place.plain)) item(e->Call(place.plain), counted);
      if (place.counts && counted < max_counted && productive(place.counted)) {
        item(e->Call(place.counted), max_counted == UINT64_MAX ? std::min(counted + 1, min_counted) : counted + 1);
      }
    }
  }
  const ExprId next = e->Alt(std::move(items));
  all.push_back(behind ? e->Concat({e->Text(","), space, next}) : next);
  return behind ? e->Concat(space, e->Alt(std::move(all))) : e->Alt(std::move(all));
}

bool ArrayItems::Productive(const State& state, const std::vector<bool>& productive) const {
  size_t looks = 0;
  return Possible(
      state[0] & ~kBehind, state[1], [&](RuleId r) { return productive[r]; }, &looks);
}

void ArrayItems::Calls(std::vector<RuleId>* rules) const {
  for (const Place& p : places) {
    if (unique) continue;
    rules->push_back(p.plain);
    if (p.counts) rules->push_back(p.counted);
  }
}

ObjectMembers::Punctuation ObjectMembers::Json(Expressions* e, ExprId space) {
  return {.open = e->Concat(e->Text("{"), space),
          .colon = e->Concat({space, e->Text(":"), space}),
          .comma = e->Concat(e->Text(","), space),
          .close = e->Text("}"),
          .space = space};
}

ExprId ObjectMembers::Whole(Expressions* e) const {
  return e->Concat(punctuation.open, e->MakeLazy(this, {0, NumberOf(Set((loose.size() + 63) / 64)), 0}));
}

uint64_t ObjectMembers::NumberOf(const Set& set) const {
  const auto [at, fresh] = numbers_.emplace(set, sets_.size());
  if (fresh) sets_.push_back(set);
  return at->second;
}

ExprId ObjectMembers::Expand(Expressions* e, const State& state) const {
  const bool behind = (state[0] & kBehind) != 0;
  const uint64_t index = state[0] & ~kBehind, count = state[2];
  Set came = sets_[state[1]];
  auto has = [&](size_t i) { return (came[i / 64] >> (i % 64) & 1) != 0; };
  const uint64_t alike = max == UINT64_MAX ? min : max;
  // What must and what may still come, of those after each.
  uint64_t loose_must = 0, loose_may = 0;
  for (size_t i = 0; i < loose.size(); ++i) {
    if (has(i) || !e->Productive(loose[i].rule)) continue;
    loose_must += loose[i].required;
    ++loose_may;
  }
  const bool endless = std::any_of(free.begin(), free.end(), [e](const Free& f) { return e->Productive(f.rule); });
  std::vector<uint64_t> must(fixed.size() + 1, loose_must), may(fixed.size() + 1, loose_may);
  for (size_t i = fixed.size(); i-- > index;) {
    const bool here = e->Productive(fixed[i].rule);
    must[i] = must[i + 1] + fixed[i].required;
    may[i] = may[i + 1] + here;
  }
  const uint64_t at = std::min<uint64_t>(index, fixed.size());
  std::vector<ExprId> members;
  // must, may: what is left behind this member.
  auto member = [&](ExprId name, RuleId rule, uint64_t still_must, uint64_t still_may, uint64_t next,
                    uint64_t next_came) {
    if (count >= max || still_must > max - count - 1) return;
    if (!endless && count + 1 + still_may < min) return;
    const uint64_t next_count = std::min(count + 1, alike);
    members.push_back(e->Concat(
        {name, punctuation.colon, e->Call(rule), e->MakeLazy(this, {next | kBehind, next_came, next_count})}));
  };
  bool past = true;  // no fixed one is missing
  for (uint64_t i = at; i < fixed.size() && past; ++i) {
    const Member& m = fixed[i];
    if (e->Productive(m.rule)) member(m.name, m.rule, must[i + 1], may[i + 1], i + 1, state[1]);
    past = !m.required;
  }
  if (past) {
    for (size_t i = 0; i < loose.size(); ++i) {
      if (has(i) || !e->Productive(loose[i].rule)) continue;
      came[i / 64] ^= uint64_t{1} << (i % 64);
      member(loose[i].name, loose[i].rule, loose_must - loose[i].required, loose_may - 1, fixed.size(), NumberOf(came));
      came[i / 64] ^= uint64_t{1} << (i % 64);
    }
    for (const Free& f : free) {
      if (e->Productive(f.rule)) member(f.name, f.rule, loose_must, loose_may, fixed.size(), state[1]);
    }
  }
  std::vector<ExprId> all;
  if (must[at] == 0 && count >= min) all.push_back(punctuation.close);
  const ExprId next = e->Alt(std::move(members));
  all.push_back(behind ? e->Concat(punctuation.comma, next) : next);
  return behind ? e->Concat(punctuation.space, e->Alt(std::move(all))) : e->Alt(std::move(all));
}

bool ObjectMembers::Productive(const State&, const std::vector<bool>& productive) const {
  uint64_t must = 0, may = 0;
  for (const std::vector<Member>* members : {&fixed, &loose}) {
    for (const Member& m : *members) {
      if (m.required && !productive[m.rule]) return false;
      must += m.required;
      may += productive[m.rule];
    }
  }
  const bool endless = std::any_of(free.begin(), free.end(), [&](const Free& f) { return productive[f.rule]; });
  return must <= max && min <= max && (endless || may >= min);
}

void ObjectMembers::Calls(std::vector<RuleId>* rules) const {
  for (const Member& m : fixed) rules->push_back(m.rule);
  for (const Member& m : loose) rules->push_back(m.rule);
  for (const Free& f : free) rules->push_back(f.rule);
}

}  // namespace gyre::grammar
