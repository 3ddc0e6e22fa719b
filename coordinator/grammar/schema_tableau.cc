#include "coordinator/grammar/schema_tableau.h"

#include <algorithm>
#include <utility>

#include "coordinator/grammar/json_formats.h"

namespace gyre::grammar {
namespace {

constexpr size_t kMostAlternatives = 256;

void AddRequired(const std::string& name, ObjectLimits* object) {
  if (std::find(object->required.begin(), object->required.end(), name) == object->required.end()) {
    object->required.push_back(name);
  }
}

bool IsReference(std::string_view keyword) {
  return keyword == "$ref" || keyword == "$dynamicRef" || keyword == "$recursiveRef";
}

void Lower(const NumberLimits::Bound& b, std::optional<NumberLimits::Bound>* low) {
  const int order = low->has_value() ? Decimal::Compare(b.value, (*low)->value) : 1;
  if (order > 0 || (order == 0 && b.exclusive)) *low = b;
}
void Upper(const NumberLimits::Bound& b, std::optional<NumberLimits::Bound>* high) {
  const int order = high->has_value() ? Decimal::Compare(b.value, (*high)->value) : -1;
  if (order < 0 || (order == 0 && b.exclusive)) *high = b;
}

}  // namespace

Status SchemaTableau::TakeApart(const Goal& goal) {
  Work work;
  for (int32_t literal : goal) {
    if (literal > 0) {
      work.obey.push_back({SchemaOf(literal), 0});
    } else {
      work.to_break.push_back(SchemaOf(literal));
    }
  }
  std::reverse(work.obey.begin(), work.obey.end());
  return Expand(std::move(work));
}

SchemaId SchemaTableau::Sub(SchemaId s, const std::string& keyword, const JsonTree& tree, const std::string& step) {
  return document_.Sub(s, tree, "/" + keyword + step);
}

bool SchemaTableau::NeverBoth(SchemaId a, SchemaId b) {
  return !alternatives_.Possible(alternatives_.Id({Obeyed(a), Obeyed(b)}));
}

bool SchemaTableau::Asserted(const std::string& format) const {
  return alternatives_.options().formats && IsKnownFormat(format);
}

StatusOr<uint64_t> SchemaTableau::Count(SchemaId s, const std::string& keyword, const JsonTree& value) const {
  if (!value.Is(JsonKind::kNumber) || value.number.negative() || !value.number.integer()) {
    return InvalidArgument("{} at {}: expected a whole number of 0 or more", keyword, "#" + document_.pointer(s));
  }
  return static_cast<uint64_t>(value.number.Small().value_or(INT64_MAX));
}

const JsonTree* SchemaTableau::FirstItems(SchemaId s) const {
  const JsonTree& tree = document_.tree(s);
  const JsonTree* first = document_.Says(s, "prefixItems") ? tree.Find("prefixItems") : nullptr;
  const JsonTree* items = tree.Find("items");
  if (first == nullptr && items != nullptr && items->Is(JsonKind::kArray)) first = items;
  return first != nullptr && first->Is(JsonKind::kArray) ? first : nullptr;
}

Status SchemaTableau::Expand(Work work) {
  bool dead = false;
  while (!work.obey.empty() && !dead) {
    const Open open = work.obey.back();
    work.obey.pop_back();
    GYRE_RETURN_IF_ERROR(Obey(open.schema, open.watchers, &work, &dead));
  }
  if (!budget_.Step(16)) return budget_.status();
  if (dead || work.a.types == 0 || (work.a.among.has_value() && work.a.among->empty())) return absl::OkStatus();
  if (!work.choices.empty()) {
    const Choice choice = work.choices.front();
    work.choices.erase(work.choices.begin());
    return Choose(choice, std::move(work));
  }
  if (!work.to_break.empty()) {
    const SchemaId s = work.to_break.back();
    work.to_break.pop_back();
    return Break(s, std::move(work));
  }
  return Finish(std::move(work));
}

Status SchemaTableau::Obey(SchemaId s, uint32_t watchers, Work* work, bool* dead) {
  const JsonTree& tree = document_.tree(s);
  if (document_.TakesAll(s)) {
    if (watchers == 0 || tree.IsBool()) return absl::OkStatus();
  }
  if (tree.Is(JsonKind::kFalse)) return *dead = true, absl::OkStatus();
  if (!tree.Is(JsonKind::kObject)) return InvalidArgument("{}: expected a schema", "#" + document_.pointer(s));
  if (!work->seen.insert({Obeyed(s), watchers}).second) return absl::OkStatus();
  if (std::find(work->to_break.begin(), work->to_break.end(), s) != work->to_break.end()) {
    return *dead = true, absl::OkStatus();
  }
  if (document_.BeforeDraft2019(s)) {
    // In these drafts a reference's siblings are ignored.
    if (const JsonTree* ref = tree.Find("$ref"); ref != nullptr && ref->Is(JsonKind::kString)) {
      return ObeyKeyword(s, "$ref", *ref, watchers, work);
    }
  }
  for (const char* unevaluated : {"unevaluatedProperties", "unevaluatedItems"}) {
    const JsonTree* value = tree.Find(unevaluated);
    if (value == nullptr || !document_.Says(s, unevaluated)) continue;
    const bool members = std::string_view(unevaluated) == "unevaluatedProperties";
    for (auto& w : work->watched) {
      if ((watchers & w.bit) != 0) (members ? w.evaluated.all_members : w.evaluated.all_items) = true;
    }
    if (document_.TakesAll(Sub(s, unevaluated, *value))) continue;
    if (work->watched.size() == 32) return document_.Refused(s, unevaluated, "there are more than 32 of them");
    work->watched.push_back({s, uint32_t{1} << work->watched.size(), members, value, {}});
    watchers |= work->watched.back().bit;
  }
  for (const auto& [keyword, value] : tree.members) {
    if (document_.Says(s, keyword)) GYRE_RETURN_IF_ERROR(ObeyKeyword(s, keyword, value, watchers, work));
  }
  return absl::OkStatus();
}

StatusOr<bool> SchemaTableau::NumberLimit(SchemaId s, const std::string& keyword, const JsonTree& value, bool broken,
                                          NumberLimits* limits) {
  const JsonTree& tree = document_.tree(s);
  const bool low = keyword == "minimum" || keyword == "exclusiveMinimum";
  bool exclusive = keyword == "exclusiveMinimum" || keyword == "exclusiveMaximum";
  if (exclusive && value.IsBool()) return false;  // draft 4: it belongs to the bound beside it
  if (!value.Is(JsonKind::kNumber)) return document_.Refused(s, keyword, "expected a number");
  if (!exclusive) {
    const JsonTree* flag = tree.Find(low ? "exclusiveMinimum" : "exclusiveMaximum");
    exclusive = flag != nullptr && flag->Is(JsonKind::kTrue);
  }
  if (low != broken) {
    Lower({value.number, exclusive != broken}, &limits->low);
  } else {
    Upper({value.number, exclusive != broken}, &limits->high);
  }
  return true;
}

StatusOr<ArrayLimits::Contains> SchemaTableau::ContainsOf(SchemaId s, const JsonTree& value) {
  const JsonTree& tree = document_.tree(s);
  ArrayLimits::Contains c{{Obeyed(Sub(s, "contains", value))}, 1, UINT64_MAX, 0, s};
  const bool counts = !document_.BeforeDraft2019(s);
  if (const JsonTree* min = tree.Find("minContains"); counts && min != nullptr) {
    GYRE_ASSIGN_OR_RETURN(c.min, Count(s, "minContains", *min));
  }
  if (const JsonTree* max = tree.Find("maxContains"); counts && max != nullptr) {
    GYRE_ASSIGN_OR_RETURN(c.max, Count(s, "maxContains", *max));
  }
  return c;
}

Status SchemaTableau::ObeyKeyword(SchemaId s, const std::string& keyword, const JsonTree& value, uint32_t watchers,
                                  Work* work) {
  Alternative& a = work->a;
  const JsonTree& tree = document_.tree(s);
  auto watch = [&](auto count) {
    for (auto& w : work->watched) {
      if ((watchers & w.bit) != 0) count(&w.evaluated);
    }
  };
  auto count_to = [&](uint64_t* limit, bool least) -> Status {
    GYRE_ASSIGN_OR_RETURN(const uint64_t n, Count(s, keyword, value));
    *limit = least ? std::max(*limit, n) : std::min(*limit, n);
    return absl::OkStatus();
  };
  auto sub = [&](const JsonTree& t, const std::string& step = "") { return Goal{Obeyed(Sub(s, keyword, t, step))}; };
  auto expect = [&](bool is, const char* what) {
    return is ? absl::OkStatus() : InvalidArgument("{} at {}: expected {}", keyword, "#" + document_.pointer(s), what);
  };

  if (IsReference(keyword)) {
    GYRE_RETURN_IF_ERROR(expect(value.Is(JsonKind::kString), "a text"));
    GYRE_ASSIGN_OR_RETURN(const SchemaId target, document_.Follow(s, keyword, value.text));
    work->obey.push_back({target, watchers});
  } else if (keyword == "type") {
    uint8_t types = 0;
    bool integer = false, number = false;
    std::vector<JsonTree> one;
    if (value.Is(JsonKind::kString)) one.push_back(value);
    GYRE_RETURN_IF_ERROR(expect(value.Is(JsonKind::kArray) || !one.empty(), "a type or a list of types"));
    for (const JsonTree& t : value.Is(JsonKind::kArray) ? value.items : one) {
      const std::string& n = t.text;
      integer = integer || n == "integer";
      number = number || n == "number";
      const int type = n == "null"                       ? kNullType
                       : n == "boolean"                  ? kBoolType
                       : n == "string"                   ? kStringType
                       : n == "array"                    ? kArrayType
                       : n == "object"                   ? kObjectType
                       : n == "integer" || n == "number" ? kNumberType
                                                         : 0;
      GYRE_RETURN_IF_ERROR(expect(type != 0, "null, boolean, integer, number, string, array or object"));
      types = static_cast<uint8_t>(types | type);
    }
    a.types &= types;
    if (integer && !number) {
      a.number.integer = true;
      a.number.no_point |= document_.draft(s) == SchemaDocument::Draft::k4;
    }
  } else if (keyword == "const") {
    if (!a.among.has_value()) a.among = {&value};
    std::erase_if(*a.among, [&](const JsonTree* v) { return !Equal(*v, value); });
  } else if (keyword == "enum") {
    GYRE_RETURN_IF_ERROR(expect(value.Is(JsonKind::kArray), "a list"));
    std::vector<const JsonTree*> values;
    if (!a.among.has_value()) {
      for (const JsonTree& v : value.items) values.push_back(&v);
    } else {
      for (const JsonTree* v : *a.among) {
        if (std::any_of(value.items.begin(), value.items.end(), [&](const JsonTree& o) { return Equal(*v, o); }))
          values.push_back(v);
      }
    }
    a.among = std::move(values);
  } else if (keyword == "minimum" || keyword == "maximum" || keyword == "exclusiveMinimum" ||
             keyword == "exclusiveMaximum") {
    GYRE_RETURN_IF_ERROR(NumberLimit(s, keyword, value, false, &a.number).status());
  } else if (keyword == "multipleOf") {
    GYRE_RETURN_IF_ERROR(
        expect(value.Is(JsonKind::kNumber) && !value.number.zero() && !value.number.negative(), "a number above 0"));
    a.number.multiples.push_back(value.number);
  } else if (keyword == "minLength") {
    return count_to(&a.string.min, true);
  } else if (keyword == "maxLength") {
    return count_to(&a.string.max, false);
  } else if (keyword == "pattern") {
    GYRE_RETURN_IF_ERROR(expect(value.Is(JsonKind::kString), "a text"));
    a.string.matches.push_back({value.text, false, true, s});
  } else if (keyword == "format") {
    if (value.Is(JsonKind::kString) && Asserted(value.text)) a.string.matches.push_back({value.text, true, true, s});
  } else if (keyword == "minItems") {
    return count_to(&a.array.min, true);
  } else if (keyword == "maxItems") {
    return count_to(&a.array.max, false);
  } else if (keyword == "uniqueItems") {
    if (value.Is(JsonKind::kTrue)) a.array.unique = s;
  } else if (keyword == "prefixItems" || keyword == "items" || keyword == "additionalItems") {
    // One of them speaks for all.
    const JsonTree* first = FirstItems(s);
    const JsonTree* items = tree.Find("items");
    const bool list = items != nullptr && items == first;
    if (keyword == "additionalItems" && !list) return absl::OkStatus();
    const std::string speaker = list ? "items" : first != nullptr ? "prefixItems" : "items";
    if (keyword != speaker) return absl::OkStatus();
    ArrayLimits::Items limits;
    if (first != nullptr) {
      for (size_t i = 0; i < first->items.size(); ++i)
        limits.first.push_back(sub(first->items[i], fmt::format("/{}", i)));
    }
    const JsonTree* rest = list ? tree.Find("additionalItems") : items;
    if (rest != nullptr) limits.rest = {Obeyed(Sub(s, list ? "additionalItems" : "items", *rest))};
    watch([&](Evaluated* e) {
      e->items = std::max(e->items, limits.first.size());
      e->all_items = e->all_items || rest != nullptr;
    });
    a.array.items.push_back(std::move(limits));
  } else if (keyword == "contains") {
    GYRE_ASSIGN_OR_RETURN(const ArrayLimits::Contains c, ContainsOf(s, value));
    for (auto& w : work->watched) {
      const bool counts = (watchers & w.bit) != 0 && !w.members && document_.draft(s) != SchemaDocument::Draft::k2019;
      if (counts && !w.evaluated.all_items) w.evaluated.contains = true;
    }
    if (c.min > 0 || c.max != UINT64_MAX) a.array.contains.push_back(c);
  } else if (keyword == "properties" || keyword == "patternProperties" || keyword == "additionalProperties") {
    const JsonTree* names = tree.Find("properties");
    const JsonTree* patterns = tree.Find("patternProperties");
    const JsonTree* rest = tree.Find("additionalProperties");
    const std::string speaker = names != nullptr      ? "properties"
                                : patterns != nullptr ? "patternProperties"
                                                      : "additionalProperties";
    if (keyword != speaker) return absl::OkStatus();
    ObjectLimits::Members limits;
    limits.schema = s;
    if (names != nullptr) {
      GYRE_RETURN_IF_ERROR(expect(names->Is(JsonKind::kObject), "an object"));
      for (const auto& [name, schema] : names->members) {
        limits.names.emplace_back(name, Goal{Obeyed(Sub(s, "properties", schema, "/" + name))});
      }
    }
    if (patterns != nullptr) {
      GYRE_RETURN_IF_ERROR(expect(patterns->Is(JsonKind::kObject), "an object"));
      for (const auto& [pattern, schema] : patterns->members) {
        limits.patterns.emplace_back(pattern, Goal{Obeyed(Sub(s, "patternProperties", schema, "/" + pattern))});
      }
    }
    if (rest != nullptr) limits.rest = {Obeyed(Sub(s, "additionalProperties", *rest))};
    watch([&](Evaluated* e) {
      for (const auto& n : limits.names) e->names.push_back(n.first);
      for (const auto& p : limits.patterns) e->patterns.push_back(p.first);
      e->all_members = e->all_members || rest != nullptr;
    });
    a.object.members.push_back(std::move(limits));
  } else if (keyword == "required") {
    if (value.IsBool()) return absl::OkStatus();  // draft 3: of the member itself; never a valid keyword since
    GYRE_RETURN_IF_ERROR(expect(value.Is(JsonKind::kArray), "a list of names"));
    for (const JsonTree& name : value.items) {
      GYRE_RETURN_IF_ERROR(expect(name.Is(JsonKind::kString), "a list of names"));
      AddRequired(name.text, &a.object);
    }
  } else if (keyword == "minProperties") {
    a.object.counted = s;
    return count_to(&a.object.min, true);
  } else if (keyword == "maxProperties") {
    return count_to(&a.object.max, false);
  } else if (keyword == "propertyNames") {
    if (!document_.TakesAll(SchemaOf(sub(value)[0]))) a.object.names.emplace_back(sub(value), s);
  } else if (keyword == "allOf") {
    GYRE_RETURN_IF_ERROR(expect(value.Is(JsonKind::kArray), "a list"));
    for (size_t i = value.items.size(); i-- > 0;) {
      work->obey.push_back({SchemaOf(sub(value.items[i], fmt::format("/{}", i))[0]), watchers});
    }
  } else if (keyword == "not") {
    work->to_break.push_back(SchemaOf(sub(value)[0]));
  } else if (keyword == "if") {
    if (watchers != 0 || tree.Find("then") != nullptr || tree.Find("else") != nullptr) {
      work->choices.push_back({s, watchers, &keyword, &value});
    }
  } else if (keyword == "anyOf" || keyword == "oneOf") {
    GYRE_RETURN_IF_ERROR(expect(value.Is(JsonKind::kArray), "a list"));
    work->choices.push_back({s, watchers, &keyword, &value});
  } else if (keyword == "dependentRequired" || keyword == "dependentSchemas" || keyword == "dependencies") {
    if (keyword == "dependencies" && document_.draft(s) == SchemaDocument::Draft::kUnsaid) {
      return document_.Refused(s, keyword, "it means something in drafts 4 to 7 only, and there is no $schema");
    }
    GYRE_RETURN_IF_ERROR(expect(value.Is(JsonKind::kObject), "an object"));
    for (const auto& [name, needs] : value.members) work->choices.push_back({s, watchers, &name, &needs});
  } else if (keyword == "unevaluatedItems" || keyword == "unevaluatedProperties") {
    return absl::OkStatus();  // Finish obeys them
  }
  return absl::OkStatus();
}

Status SchemaTableau::Choose(const Choice& c, Work work) {
  const JsonTree& value = *c.value;
  if (*c.keyword == "if" && &value == document_.tree(c.schema).Find("if")) {
    const JsonTree& tree = document_.tree(c.schema);
    const SchemaId condition = Sub(c.schema, "if", value);
    const JsonTree* then = tree.Find("then");
    const JsonTree* otherwise = tree.Find("else");
    Work met = work;
    if (then != nullptr) met.obey.push_back({Sub(c.schema, "then", *then), c.watchers});
    met.obey.push_back({condition, c.watchers});
    GYRE_RETURN_IF_ERROR(Expand(std::move(met)));
    if (document_.TakesAll(condition)) return absl::OkStatus();
    if (otherwise != nullptr) work.obey.push_back({Sub(c.schema, "else", *otherwise), c.watchers});
    work.to_break.push_back(condition);
    return Expand(std::move(work));
  }
  const bool any = &value == document_.tree(c.schema).Find("anyOf");
  const bool one = &value == document_.tree(c.schema).Find("oneOf");
  if (!any && !one) {  // a name, and what it needs
    Work absent = work;
    absent.a.object.forbidden.insert(*c.keyword);
    GYRE_RETURN_IF_ERROR(Expand(std::move(absent)));
    work.a.types &= kObjectType;
    AddRequired(*c.keyword, &work.a.object);
    if (value.Is(JsonKind::kArray)) {
      for (const JsonTree& name : value.items) AddRequired(name.text, &work.a.object);
    } else {
      work.obey.push_back({Sub(c.schema, *c.keyword, value), c.watchers});
    }
    return Expand(std::move(work));
  }
  if (any && c.watchers != 0) {
    if (value.items.size() > 6)
      return document_.Refused(c.schema, *c.keyword, "too many alternatives beside an unevaluated keyword");
    return ChooseSome(c, 0, false, std::move(work));
  }
  for (size_t i = 0; i < value.items.size(); ++i) {
    const SchemaId s = Sub(c.schema, *c.keyword, value.items[i], fmt::format("/{}", i));
    Work way = work;
    way.obey.push_back({s, c.watchers});
    for (size_t j = 0; one && j < value.items.size(); ++j) {
      if (j == i) continue;
      const SchemaId other = Sub(c.schema, *c.keyword, value.items[j], fmt::format("/{}", j));
      if (!NeverBoth(s, other)) way.to_break.push_back(other);
    }
    GYRE_RETURN_IF_ERROR(Expand(std::move(way)));
  }
  return absl::OkStatus();
}

// Each of anyOf's schemas is obeyed or broken, and one at least is obeyed: what counts as evaluated depends on it.
Status SchemaTableau::ChooseSome(const Choice& c, size_t from, bool one, Work work) {
  const JsonTree& value = *c.value;
  if (from == value.items.size()) return one ? Expand(std::move(work)) : absl::OkStatus();
  const SchemaId s = Sub(c.schema, "anyOf", value.items[from], fmt::format("/{}", from));
  Work obeyed = work;
  obeyed.obey.push_back({s, c.watchers});
  GYRE_RETURN_IF_ERROR(ChooseSome(c, from + 1, true, std::move(obeyed)));
  if (document_.TakesAll(s)) return absl::OkStatus();
  work.to_break.push_back(s);
  return ChooseSome(c, from + 1, one, std::move(work));
}

Status SchemaTableau::Break(SchemaId s, Work work) {
  const JsonTree& tree = document_.tree(s);
  if (document_.TakesAll(s) || work.seen.contains({Obeyed(s), 0})) return absl::OkStatus();
  if (document_.TakesNone(s) || !work.seen.insert({BrokenOf(s), 0}).second) return Expand(std::move(work));
  if (document_.BeforeDraft2019(s)) {
    if (const JsonTree* ref = tree.Find("$ref"); ref != nullptr) return BreakKeyword(s, "$ref", *ref, work);
  }
  for (const auto& [keyword, value] : tree.members) {
    if (document_.Says(s, keyword)) GYRE_RETURN_IF_ERROR(BreakKeyword(s, keyword, value, work));
  }
  return absl::OkStatus();
}

// Adds the ways to break one keyword.
Status SchemaTableau::BreakKeyword(SchemaId s, const std::string& keyword, const JsonTree& value, const Work& work) {
  const JsonTree& tree = document_.tree(s);
  Work obeyed;  // what is no value of the keyword can't be broken either
  GYRE_RETURN_IF_ERROR(ObeyKeyword(s, keyword, value, 0, &obeyed));
  // A way that only values of these types have.
  auto way = [&](uint8_t types, auto change) -> Status {
    if ((work.a.types & types) == 0) return absl::OkStatus();
    Work next = work;
    next.a.types &= types;
    change(&next);
    return Expand(std::move(next));
  };
  auto refuse = [&](uint8_t types) {
    return (work.a.types & types) == 0 ? absl::OkStatus()
                                       : document_.Refused(s, keyword, "its opposite can't be obeyed");
  };
  auto sub = [&](const JsonTree& t, const std::string& step = "") { return Sub(s, keyword, t, step); };

  if (IsReference(keyword)) {
    const SchemaId target = obeyed.obey.back().schema;
    return way(kAllTypes, [&](Work* w) { w->to_break.push_back(target); });
  }
  if (keyword == "type") {
    if (obeyed.a.number.integer) {
      const bool written = document_.draft(s) == SchemaDocument::Draft::k4;
      GYRE_RETURN_IF_ERROR(
          way(kNumberType, [written](Work* w) { (written ? w->a.number.point : w->a.number.no_integer) = true; }));
    }
    return way(static_cast<uint8_t>(kAllTypes & ~obeyed.a.types), [](Work*) {});
  }
  if (keyword == "const") return way(kAllTypes, [&](Work* w) { w->a.except.push_back(&value); });
  if (keyword == "enum") {
    return way(kAllTypes, [&](Work* w) {
      for (const JsonTree& v : value.items) w->a.except.push_back(&v);
    });
  }
  if (keyword == "minimum" || keyword == "maximum" || keyword == "exclusiveMinimum" || keyword == "exclusiveMaximum") {
    NumberLimits limits;
    GYRE_ASSIGN_OR_RETURN(const bool limit, NumberLimit(s, keyword, value, true, &limits));
    if (!limit) return absl::OkStatus();
    return way(kNumberType, [&](Work* w) {
      if (limits.low.has_value()) Lower(*limits.low, &w->a.number.low);
      if (limits.high.has_value()) Upper(*limits.high, &w->a.number.high);
    });
  }
  if (keyword == "multipleOf")
    return way(kNumberType, [&](Work* w) { w->a.number.no_multiples.push_back(value.number); });
  if (keyword == "pattern" || keyword == "format") {
    const bool format = keyword == "format";
    if (format && !Asserted(value.text)) return absl::OkStatus();
    return way(kStringType, [&](Work* w) { w->a.string.matches.push_back({value.text, format, false, s}); });
  }
  const bool least = keyword == "minLength" || keyword == "minItems" || keyword == "minProperties";
  if (least || keyword == "maxLength" || keyword == "maxItems" || keyword == "maxProperties") {
    GYRE_ASSIGN_OR_RETURN(const uint64_t n, Count(s, keyword, value));
    if (least && n == 0) return absl::OkStatus();
    const uint8_t type = keyword.ends_with("Length")  ? kStringType
                         : keyword.ends_with("Items") ? kArrayType
                                                      : kObjectType;
    return way(type, [&](Work* w) {
      Alternative& a = w->a;
      uint64_t* min = type == kStringType ? &a.string.min : type == kArrayType ? &a.array.min : &a.object.min;
      uint64_t* max = type == kStringType ? &a.string.max : type == kArrayType ? &a.array.max : &a.object.max;
      if (least) {
        *max = std::min(*max, n - 1);
      } else {
        *min = std::max(*min, n + 1);
        a.object.counted = s;
      }
    });
  }
  if (keyword == "uniqueItems") return value.Is(JsonKind::kTrue) ? refuse(kArrayType) : absl::OkStatus();
  if (keyword == "prefixItems" || keyword == "items" || keyword == "additionalItems") {
    if (obeyed.a.array.items.empty()) return absl::OkStatus();
    const ArrayLimits::Items items = obeyed.a.array.items[0];
    for (size_t i = 0; i < items.first.size(); ++i) {
      if (document_.TakesAll(SchemaOf(items.first[i][0]))) continue;
      GYRE_RETURN_IF_ERROR(way(kArrayType, [&](Work* w) {
        Goal& at = w->a.array.at[i];
        at = SchemaAlternatives::Both(at, {BrokenOf(SchemaOf(items.first[i][0]))});
        w->a.array.min = std::max<uint64_t>(w->a.array.min, i + 1);
      }));
    }
    if (items.rest.empty() || document_.TakesAll(SchemaOf(items.rest[0]))) return absl::OkStatus();
    return way(kArrayType, [&](Work* w) {
      w->a.array.contains.push_back({{BrokenOf(SchemaOf(items.rest[0]))}, 1, UINT64_MAX, items.first.size(), s});
    });
  }
  if (keyword == "contains") {
    GYRE_ASSIGN_OR_RETURN(const ArrayLimits::Contains c, ContainsOf(s, value));
    if (c.min > 0) {
      GYRE_RETURN_IF_ERROR(way(kArrayType, [&](Work* w) {
        w->a.array.contains.push_back({c.goal, 0, c.min - 1, 0, s});
      }));
    }
    if (c.max == UINT64_MAX) return absl::OkStatus();
    return way(kArrayType, [&](Work* w) { w->a.array.contains.push_back({c.goal, c.max + 1, UINT64_MAX, 0, s}); });
  }
  if (keyword == "required") {
    if (!value.Is(JsonKind::kArray)) return absl::OkStatus();
    for (const JsonTree& name : value.items) {
      GYRE_RETURN_IF_ERROR(way(kObjectType, [&](Work* w) { w->a.object.forbidden.insert(name.text); }));
    }
    return absl::OkStatus();
  }
  if (keyword == "properties") {
    for (const JsonMember& m : value.members) {
      const std::string& name = m.first;
      const JsonTree& schema = m.second;
      const SchemaId member = sub(schema, "/" + name);
      if (document_.TakesAll(member)) continue;
      GYRE_RETURN_IF_ERROR(way(kObjectType, [&](Work* w) {
        AddRequired(name, &w->a.object);
        Goal& at = w->a.object.at[name];
        at = SchemaAlternatives::Both(at, {BrokenOf(member)});
      }));
    }
    return absl::OkStatus();
  }
  if (keyword == "patternProperties") {
    for (const auto& [pattern, schema] : value.members) {
      if (!document_.TakesAll(sub(schema, "/" + pattern))) return refuse(kObjectType);
    }
    return absl::OkStatus();
  }
  if (keyword == "additionalProperties" || keyword == "propertyNames") {
    return document_.TakesAll(sub(value)) ? absl::OkStatus() : refuse(kObjectType);
  }
  if (keyword == "unevaluatedProperties")
    return document_.TakesAll(sub(value)) ? absl::OkStatus() : refuse(kObjectType);
  if (keyword == "unevaluatedItems") return document_.TakesAll(sub(value)) ? absl::OkStatus() : refuse(kArrayType);
  if (keyword == "not") return way(kAllTypes, [&](Work* w) { w->obey.push_back({sub(value), 0}); });
  if (keyword == "allOf") {
    for (size_t i = 0; i < value.items.size(); ++i) {
      const SchemaId part = sub(value.items[i], fmt::format("/{}", i));
      GYRE_RETURN_IF_ERROR(way(kAllTypes, [&](Work* w) { w->to_break.push_back(part); }));
    }
    return absl::OkStatus();
  }
  if (keyword == "anyOf" || keyword == "oneOf") {
    std::vector<SchemaId> parts;
    for (size_t i = 0; i < value.items.size(); ++i) parts.push_back(sub(value.items[i], fmt::format("/{}", i)));
    GYRE_RETURN_IF_ERROR(
        way(kAllTypes, [&](Work* w) { w->to_break.insert(w->to_break.end(), parts.begin(), parts.end()); }));
    for (size_t i = 0; keyword == "oneOf" && i < parts.size(); ++i) {
      for (size_t j = i + 1; j < parts.size(); ++j) {
        if (NeverBoth(parts[i], parts[j])) continue;
        GYRE_RETURN_IF_ERROR(way(kAllTypes, [&](Work* w) {
          w->obey.push_back({parts[i], 0});
          w->obey.push_back({parts[j], 0});
        }));
      }
    }
    return absl::OkStatus();
  }
  if (keyword == "if") {
    const JsonTree* then = tree.Find("then");
    const JsonTree* otherwise = tree.Find("else");
    if (then != nullptr) {
      GYRE_RETURN_IF_ERROR(way(kAllTypes, [&](Work* w) {
        w->obey.push_back({sub(value), 0});
        w->to_break.push_back(Sub(s, "then", *then));
      }));
    }
    if (otherwise == nullptr) return absl::OkStatus();
    return way(kAllTypes, [&](Work* w) {
      w->to_break.push_back(sub(value));
      w->to_break.push_back(Sub(s, "else", *otherwise));
    });
  }
  if (keyword == "dependentRequired" || keyword == "dependentSchemas" || keyword == "dependencies") {
    for (const JsonMember& m : value.members) {
      const std::string& name = m.first;
      const JsonTree& needs = m.second;
      std::vector<std::string> forbidden;
      for (const JsonTree& n : needs.items) forbidden.push_back(n.text);
      for (const std::string& f : forbidden) {
        GYRE_RETURN_IF_ERROR(way(kObjectType, [&](Work* w) {
          AddRequired(name, &w->a.object);
          w->a.object.forbidden.insert(f);
        }));
      }
      if (needs.Is(JsonKind::kArray)) continue;
      GYRE_RETURN_IF_ERROR(way(kObjectType, [&](Work* w) {
        AddRequired(name, &w->a.object);
        w->to_break.push_back(sub(needs, "/" + name));
      }));
    }
    return absl::OkStatus();
  }
  return refuse(kAllTypes);
}

Status SchemaTableau::Finish(Work work) {
  Alternative& a = work.a;
  for (const auto& w : work.watched) {
    const char* keyword = w.members ? "unevaluatedProperties" : "unevaluatedItems";
    const Goal rest = {Obeyed(Sub(w.schema, keyword, *w.value))};
    if (w.members && !w.evaluated.all_members) {
      ObjectLimits::Members limits;
      limits.schema = w.schema;
      for (const std::string& name : w.evaluated.names) limits.names.emplace_back(name, Goal());
      for (const std::string& pattern : w.evaluated.patterns) limits.patterns.emplace_back(pattern, Goal());
      limits.rest = rest;
      a.object.members.push_back(std::move(limits));
    } else if (!w.members && !w.evaluated.all_items) {
      if (w.evaluated.contains && (a.types & kArrayType) != 0)
        return document_.Refused(w.schema, keyword, "beside contains it can't be obeyed");
      a.array.items.push_back({std::vector<Goal>(w.evaluated.items), rest});
    }
  }
  GYRE_RETURN_IF_ERROR(Prune(&a));
  if (a.types == 0) return absl::OkStatus();
  out_->push_back(std::move(a));
  budget_.Count("alternatives of a schema", out_->size(), kMostAlternatives);
  return budget_.status();
}

// Drops types and values that the limits leave nothing of.
Status SchemaTableau::Prune(Alternative* a) {
  if (a->among.has_value()) {
    std::vector<const JsonTree*> kept;
    for (const JsonTree* v : *a->among) {
      GYRE_ASSIGN_OR_RETURN(const bool reaches, alternatives_.Reaches(*v, *a));
      if (reaches) kept.push_back(v);
    }
    if (kept.empty()) a->types = 0;
    a->among = std::move(kept);
    return absl::OkStatus();
  }
  const NumberLimits& n = a->number;
  bool number = !(n.integer && n.no_integer) && !(n.no_point && n.point);
  if (n.low.has_value() && n.high.has_value()) {
    const int order = Decimal::Compare(n.low->value, n.high->value);
    if (order > 0 || (order == 0 && (n.low->exclusive || n.high->exclusive))) number = false;
  }
  if (!number) a->types &= static_cast<uint8_t>(~kNumberType);
  if (a->string.min > a->string.max) a->types &= static_cast<uint8_t>(~kStringType);
  if ((a->types & kArrayType) != 0) {
    bool array = a->array.min <= a->array.max;
    for (size_t i = 0; array && i < std::min<uint64_t>(a->array.min, 16); ++i)
      array = alternatives_.Possible(alternatives_.Id(alternatives_.ItemGoal(a->array, i)));
    for (const auto& c : a->array.contains)
      array = array && c.min <= c.max && (c.min == 0 || alternatives_.Possible(alternatives_.Id(c.goal)));
    if (!array) a->types &= static_cast<uint8_t>(~kArrayType);
  }
  if ((a->types & kObjectType) != 0) {
    const ObjectLimits& o = a->object;
    bool object = o.min <= o.max && o.required.size() <= o.max;
    for (size_t i = 0; object && i < o.required.size(); ++i) {
      object = !o.forbidden.contains(o.required[i]);
      if (!object) break;
      GYRE_ASSIGN_OR_RETURN(Goal goal, alternatives_.MemberGoal(o, o.required[i]));
      object = alternatives_.Possible(alternatives_.Id(std::move(goal)));
    }
    if (!object) a->types &= static_cast<uint8_t>(~kObjectType);
  }
  return absl::OkStatus();
}

}  // namespace gyre::grammar
