#include "coordinator/grammar/schema_alternatives.h"

#include <algorithm>

#include "coordinator/grammar/schema_tableau.h"
#include "model/utf8.h"

namespace gyre::grammar {
namespace {

uint8_t TypeOf(const JsonTree& value) {
  switch (value.kind) {
    case JsonKind::kNull: return kNullType;
    case JsonKind::kTrue:
    case JsonKind::kFalse: return kBoolType;
    case JsonKind::kNumber: return kNumberType;
    case JsonKind::kString: return kStringType;
    case JsonKind::kArray: return kArrayType;
    case JsonKind::kObject: return kObjectType;
  }
  return 0;
}

uint64_t CodePointsOf(std::string_view text) {
  uint64_t count = 0;
  for (size_t i = 0; i < text.size(); i += Utf8Length(text, i)) ++count;
  return count;
}

}  // namespace

Goal SchemaAlternatives::Both(const Goal& a, const Goal& b) {
  Goal both;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

GoalId SchemaAlternatives::Id(Goal goal) {
  for (int32_t& literal : goal) {
    // A schema that only refers to another is that one.
    for (int hops = 0; literal > 0 && hops < 16; ++hops) {
      const JsonTree& tree = document_.tree(SchemaOf(literal));
      const JsonTree* ref = tree.Find("$ref");
      if (ref == nullptr || !ref->Is(JsonKind::kString)) break;
      const bool alone = document_.BeforeDraft2019(SchemaOf(literal)) ||
                         std::all_of(tree.members.begin(), tree.members.end(), [&](const JsonMember& m) {
                           return m.first == "$ref" || !document_.Says(SchemaOf(literal), m.first);
                         });
      if (!alone) break;
      const auto target = document_.Follow(SchemaOf(literal), "$ref", ref->text);
      if (!target.ok()) break;
      literal = Obeyed(*target);
    }
  }
  std::erase_if(
      goal, [this](int32_t l) { return l > 0 ? document_.TakesAll(SchemaOf(l)) : document_.TakesNone(SchemaOf(l)); });
  std::sort(goal.begin(), goal.end());
  goal.erase(std::unique(goal.begin(), goal.end()), goal.end());
  const auto [at, fresh] = ids_.emplace(std::move(goal), static_cast<GoalId>(goals_.size()));
  if (fresh) {
    goals_.push_back(&at->first);
    budget_.Memory(96 + at->first.size() * 4);
  }
  return at->second;
}

GoalId SchemaAlternatives::Root() { return Id({Obeyed(document_.root())}); }

StatusOr<const std::vector<Alternative>*> SchemaAlternatives::Of(GoalId id) {
  if (const auto at = made_.find(id); at != made_.end()) return at->second.get();
  if (++depth_ > 2 * budget_.bounds().nesting) {
    --depth_;
    return ResourceExhausted("grammar: the bound of {} schemas in schemas is passed", 2 * budget_.bounds().nesting);
  }
  auto all = std::make_unique<std::vector<Alternative>>();
  looking_.insert(id);
  const Status expanded = SchemaTableau(this, all.get()).TakeApart(*goals_[id]);
  looking_.erase(id);
  --depth_;
  GYRE_RETURN_IF_ERROR(expanded);
  budget_.Memory(all->size() * sizeof(Alternative));
  return (made_[id] = std::move(all)).get();
}

bool SchemaAlternatives::Possible(GoalId id) {
  if (const auto at = possible_.find(id); at != possible_.end()) return at->second;
  if (looking_.contains(id)) return true;
  const auto all = Of(id);
  if (!all.ok()) return true;
  return possible_[id] = !(*all)->empty();
}

StatusOr<Goal> SchemaAlternatives::MemberGoal(const ObjectLimits& limits, const std::string& name) {
  Goal goal;
  for (const ObjectLimits::Members& m : limits.members) {
    bool rest = true;
    for (const auto& [n, g] : m.names) {
      if (n == name) goal = Both(goal, g), rest = false;
    }
    for (const auto& [pattern, g] : m.patterns) {
      GYRE_ASSIGN_OR_RETURN(const bool matches, matcher_({pattern, false, true, m.schema}, name));
      if (matches) goal = Both(goal, g), rest = false;
    }
    if (rest) goal = Both(goal, m.rest);
  }
  if (const auto at = limits.at.find(name); at != limits.at.end()) goal = Both(goal, at->second);
  return goal;
}

Goal SchemaAlternatives::ItemGoal(const ArrayLimits& limits, size_t index) const {
  Goal goal;
  for (const ArrayLimits::Items& i : limits.items) goal = Both(goal, index < i.first.size() ? i.first[index] : i.rest);
  if (const auto at = limits.at.find(index); at != limits.at.end()) goal = Both(goal, at->second);
  return goal;
}

StatusOr<bool> SchemaAlternatives::Reaches(const JsonTree& value, GoalId goal) {
  GYRE_ASSIGN_OR_RETURN(const std::vector<Alternative>* all, Of(goal));
  for (const Alternative& a : *all) {
    // Within a value 1 is written without a point.
    if (value.Is(JsonKind::kNumber) && value.number.integer() && a.number.point) continue;
    GYRE_ASSIGN_OR_RETURN(const bool reaches, Reaches(value, a));
    if (reaches) return true;
  }
  return false;
}

StatusOr<bool> SchemaAlternatives::Reaches(const JsonTree& value, const Alternative& a) {
  budget_.Step();
  GYRE_RETURN_IF_ERROR(budget_.status());
  if ((TypeOf(value) & a.types) == 0) return false;
  auto is = [&](const JsonTree* v) { return Equal(*v, value); };
  if (a.among.has_value() && std::none_of(a.among->begin(), a.among->end(), is)) return false;
  if (std::any_of(a.except.begin(), a.except.end(), is)) return false;
  auto multiple = [&](const Decimal& of) -> StatusOr<bool> {
    int scale = 0;
    const std::optional<uint64_t> n = of.Scaled(&scale);
    if (!n.has_value()) return ResourceExhausted("grammar: the bound of 17 digits of multipleOf is passed");
    return value.number.IsMultipleOf(*n, scale);
  };
  switch (value.kind) {
    case JsonKind::kNumber: {
      const NumberLimits& n = a.number;
      if (n.integer && !value.number.integer()) return false;
      if (n.no_integer && value.number.integer()) return false;
      if (n.low.has_value()) {
        const int order = Decimal::Compare(value.number, n.low->value);
        if (order < 0 || (order == 0 && n.low->exclusive)) return false;
      }
      if (n.high.has_value()) {
        const int order = Decimal::Compare(value.number, n.high->value);
        if (order > 0 || (order == 0 && n.high->exclusive)) return false;
      }
      for (const bool wanted : {true, false}) {
        for (const Decimal& m : wanted ? n.multiples : n.no_multiples) {
          GYRE_ASSIGN_OR_RETURN(const bool is_multiple, multiple(m));
          if (is_multiple != wanted) return false;
        }
      }
      return true;
    }
    case JsonKind::kString: {
      const uint64_t length = CodePointsOf(value.text);
      if (length < a.string.min || length > a.string.max) return false;
      for (const StringLimits::Match& m : a.string.matches) {
        GYRE_ASSIGN_OR_RETURN(const bool matches, matcher_(m, value.text));
        if (matches != m.matches) return false;
      }
      return true;
    }
    case JsonKind::kArray: {
      if (value.items.size() < a.array.min || value.items.size() > a.array.max) return false;
      for (size_t i = 0; i < value.items.size(); ++i) {
        GYRE_ASSIGN_OR_RETURN(const bool reaches, Reaches(value.items[i], Id(ItemGoal(a.array, i))));
        if (!reaches) return false;
        for (size_t j = 0; a.array.unique.has_value() && j < i; ++j) {
          if (Equal(value.items[i], value.items[j])) return false;
        }
      }
      for (const ArrayLimits::Contains& c : a.array.contains) {
        uint64_t count = 0;
        for (size_t i = c.from; i < value.items.size(); ++i) {
          GYRE_ASSIGN_OR_RETURN(const bool reaches, Reaches(value.items[i], Id(c.goal)));
          count += reaches;
        }
        if (count < c.min || count > c.max) return false;
      }
      return true;
    }
    case JsonKind::kObject: {
      const ObjectLimits& o = a.object;
      std::set<std::string> names;
      for (const auto& member : value.members) names.insert(member.first);
      if (names.size() < o.min || names.size() > o.max) return false;
      for (const std::string& r : o.required) {
        if (!names.contains(r)) return false;
      }
      for (const std::string& name : names) {
        if (o.forbidden.contains(name)) return false;
        GYRE_ASSIGN_OR_RETURN(Goal goal, MemberGoal(o, name));
        GYRE_ASSIGN_OR_RETURN(const bool reaches, Reaches(*value.Find(name), Id(std::move(goal))));
        if (!reaches) return false;
        JsonTree as_text;
        as_text.kind = JsonKind::kString;
        as_text.text = name;
        for (const auto& [g, schema] : o.names) {
          GYRE_ASSIGN_OR_RETURN(const bool named, Reaches(as_text, Id(g)));
          if (!named) return false;
        }
      }
      return true;
    }
    default: return true;
  }
}

}  // namespace gyre::grammar
