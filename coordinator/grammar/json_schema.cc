#include "coordinator/grammar/json_schema.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "coordinator/grammar/json_containers.h"
#include "coordinator/grammar/json_text.h"
#include "coordinator/grammar/schema_alternatives.h"

namespace gyre::grammar {
namespace {

constexpr size_t kMostUnique = 16, kMostNameKinds = 64, kMostInAnyOrder = 64, kLongestName = 256;

class SchemaGrammar {
 public:
  // form: of a call's arguments; null: a whole text is to be one value.
  SchemaGrammar(SchemaDocument document, const JsonOptions& options, Grammar* grammar,
                const ArgumentsForm* form = nullptr)
      : options_(options),
        form_(form),
        document_(std::move(document)),
        grammar_(*grammar),
        e_(grammar->expressions()),
        text_(&e_, options.compact, form == nullptr ? JsonStyle() : form->style),
        alternatives_(&document_, {.formats = options.formats}, &grammar->budget(),
                      [this](const StringLimits::Match& m, std::string_view t) { return text_.Matches(m, t); }) {}

  // The values that the schema takes.
  StatusOr<ExprId> Value() {
    const RuleId top = RuleOf(alternatives_.Root());
    GYRE_RETURN_IF_ERROR(AddBodies());
    return e_.Concat(text_.space(), e_.Call(top));
  }

  // The objects that the schema takes, in the form.
  StatusOr<ExprId> Arguments() {
    GYRE_ASSIGN_OR_RETURN(const std::vector<Alternative>* all, alternatives_.Of(alternatives_.Root()));
    std::vector<ExprId> ways;
    for (Alternative a : *all) {
      if (a.among.has_value() && !form_->object) {
        return document_.Refused(document_.root(), "enum", "arguments of this form can't be listed as a whole");
      }
      if (a.among.has_value()) {
        std::erase_if(*a.among, [](const JsonTree* v) { return !v->Is(JsonKind::kObject); });
      }
      a.types &= kObjectType;
      GYRE_RETURN_IF_ERROR(AddWays(a, true, &ways, form_));
    }
    GYRE_RETURN_IF_ERROR(AddBodies());
    const ExprId arguments = e_.Alt(std::move(ways));
    if (arguments == kNothing) return InvalidArgument("no object obeys the schema");
    return form_->object ? e_.Concat(arguments, form_->close) : arguments;
  }

 private:
  Status AddBodies() {
    for (size_t next = 0; next < goals_.size(); ++next) {
      GYRE_ASSIGN_OR_RETURN(const ExprId body, Body(goals_[next].first));
      grammar_.SetBody(goals_[next].second, body);
      GYRE_RETURN_IF_ERROR(grammar_.budget().status());
    }
    return absl::OkStatus();
  }

  RuleId RuleOf(GoalId goal) {
    const auto [at, fresh] = rules_.emplace(goal, 0);
    if (fresh) {
      at->second = grammar_.AddRule();
      goals_.emplace_back(goal, at->second);
    }
    return at->second;
  }
  RuleId RuleOf(Goal goal) { return RuleOf(alternatives_.Id(std::move(goal))); }

  StatusOr<ExprId> Body(GoalId goal) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<Alternative>* all, alternatives_.Of(goal));
    std::vector<ExprId> ways;
    // Members of several kinds of objects have no one order.
    const auto objects = std::count_if(all->begin(), all->end(), [](const Alternative& a) {
      return (a.types & kObjectType) != 0 && !a.among.has_value() && !a.object.members.empty();
    });
    for (const Alternative& a : *all) GYRE_RETURN_IF_ERROR(AddWays(a, objects > 1 || options_.any_order, &ways));
    return e_.Alt(std::move(ways));
  }

  // form: of the members, if this is a call's arguments.
  Status AddWays(const Alternative& a, bool any_order, std::vector<ExprId>* ways, const ArgumentsForm* form = nullptr) {
    if (a.among.has_value()) {
      for (const JsonTree* v : *a.among) ways->push_back(Among(a, *v));
      return absl::OkStatus();
    }
    auto except = [&](JsonKind kind) {
      return std::any_of(a.except.begin(), a.except.end(), [kind](const JsonTree* v) { return v->Is(kind); });
    };
    if ((a.types & kNullType) != 0 && !except(JsonKind::kNull)) ways->push_back(text_.Word(JsonKind::kNull));
    if ((a.types & kBoolType) != 0) {
      if (!except(JsonKind::kTrue)) ways->push_back(text_.Word(JsonKind::kTrue));
      if (!except(JsonKind::kFalse)) ways->push_back(text_.Word(JsonKind::kFalse));
    }
    if ((a.types & kNumberType) != 0) {
      NumberLimits limits = a.number;
      std::vector<ExprId> parts;
      for (const JsonTree* v : a.except) {
        if (v->Is(JsonKind::kNumber)) parts.push_back(e_.Not(text_.NumberLiteral(v->number, kUnbounded)));
      }
      // With an exponent one number has too many texts to leave it out.
      if (!parts.empty() && limits.none()) parts.push_back(e_.Alt(NoExponent(true), NoExponent(false)));
      if (parts.empty() || !limits.none()) {
        GYRE_ASSIGN_OR_RETURN(const ExprId number, text_.Number(limits));
        parts.push_back(number);
      }
      ways->push_back(parts.size() == 1 ? parts[0] : e_.And(std::move(parts)));
    }
    if ((a.types & kStringType) != 0) {
      GYRE_ASSIGN_OR_RETURN(const ExprId string, text_.StringValue(a.string, Strings(a.except)));
      ways->push_back(string);
    }
    for (const JsonKind kind : {JsonKind::kArray, JsonKind::kObject}) {
      if ((a.types & (kind == JsonKind::kArray ? kArrayType : kObjectType)) == 0) continue;
      for (const JsonTree* v : a.except) {
        if (!v->Is(kind)) continue;
        Alternative others = a;
        others.except.clear();
        GYRE_ASSIGN_OR_RETURN(const bool reaches, alternatives_.Reaches(*v, others));
        if (reaches) return Unimplemented("not: an array or object that a value must not equal can't be obeyed");
      }
      GYRE_ASSIGN_OR_RETURN(const ExprId container,
                            kind == JsonKind::kArray ? Array(a.array) : Object(a.object, any_order, form));
      ways->push_back(container);
    }
    return absl::OkStatus();
  }

  // All numbers without an exponent, by their sign.
  ExprId NoExponent(bool negative) {
    NumberLimits limits;
    (negative ? limits.high : limits.low) = NumberLimits::Bound{Decimal(), false};
    return text_.Number(limits).value_or(kNothing);
  }

  static std::vector<std::string> Strings(const std::vector<const JsonTree*>& values) {
    std::vector<std::string> texts;
    for (const JsonTree* v : values) {
      if (v->Is(JsonKind::kString)) texts.push_back(v->text);
    }
    return texts;
  }

  // A value that the alternative has listed.
  ExprId Among(const Alternative& a, const JsonTree& value) {
    if (!value.Is(JsonKind::kNumber)) return Literal(value);
    const ExprId number = text_.NumberLiteral(value.number, a.number.no_point ? 0 : JsonText::kMostZeros);
    return a.number.point ? e_.And(number, text_.WithPoint()) : number;
  }

  ExprId Literal(const JsonTree& value) {
    switch (value.kind) {
      case JsonKind::kNull:
      case JsonKind::kTrue:
      case JsonKind::kFalse: return text_.Word(value.kind);
      case JsonKind::kNumber:  // within a value: integers of draft 4 have no point, whatever is asked of them there
        return text_.NumberLiteral(value.number, document_.any_draft4() ? 0 : JsonText::kMostZeros);
      case JsonKind::kString: return text_.StringLiteral(value.text);
      case JsonKind::kArray: {
        ExprId all = e_.Text("]");
        for (size_t i = value.items.size(); i-- > 0;) {
          all = e_.Concat({Literal(value.items[i]), text_.space(), all});
          if (i > 0) all = e_.Concat({e_.Text(","), text_.space(), all});
        }
        return e_.Concat({e_.Text("["), text_.space(), all});
      }
      case JsonKind::kObject: break;
    }
    auto members = std::make_unique<ObjectMembers>(ObjectMembers::Json(&e_, text_.space()));
    std::set<std::string> seen;
    for (const auto& [name, member] : value.members) {
      if (!seen.insert(name).second) continue;
      const RuleId rule = grammar_.AddRule();
      grammar_.SetBody(rule, Literal(*value.Find(name)));
      members->loose.push_back({text_.Name(name), rule, true});
    }
    return static_cast<const ObjectMembers*>(e_.Own(std::move(members)))->Whole(&e_);
  }

  StatusOr<ExprId> Array(const ArrayLimits& a) {
    auto items = std::make_unique<ArrayItems>();
    items->space = text_.space();
    items->min = a.min;
    items->max = a.max;
    size_t places = 0;
    for (const ArrayLimits::Items& i : a.items) places = std::max(places, i.first.size());
    if (!a.at.empty()) places = std::max(places, a.at.rbegin()->first + 1);
    if (a.contains.size() > 1) {
      return document_.Refused(a.contains[1].schema, "contains", "beside another one it can't be obeyed");
    }
    if (!a.contains.empty()) {
      places = std::max(places, a.contains[0].from);
      items->min_counted = a.contains[0].min;
      items->max_counted = a.contains[0].max;
    }
    if (a.unique.has_value() && a.max > 1) return UniqueArray(a, places, std::move(items));
    for (size_t i = 0; i <= places; ++i) {
      const Goal goal = alternatives_.ItemGoal(a, i);
      ArrayItems::Place place;
      if (a.contains.empty() || i < a.contains[0].from) {
        place.plain = RuleOf(goal);
      } else {
        const ArrayLimits::Contains& c = a.contains[0];
        place.counts = true;
        place.counted = RuleOf(SchemaAlternatives::Both(goal, c.goal));
        place.plain = RuleOf(goal);
        if (c.max != UINT64_MAX) {
          if (c.goal.size() != 1) return document_.Refused(c.schema, "contains", "its opposite can't be obeyed");
          place.plain = RuleOf(SchemaAlternatives::Both(goal, {-c.goal[0]}));
        }
      }
      items->places.push_back(place);
    }
    return static_cast<const ArrayItems*>(e_.Own(std::move(items)))->Whole(&e_);
  }

  // No value twice: there must be few.
  StatusOr<ExprId> UniqueArray(const ArrayLimits& a, size_t places, std::unique_ptr<ArrayItems> items) {
    auto refused = [&] {
      return document_.Refused(*a.unique, "uniqueItems",
                               fmt::format("it can be obeyed for items of at most {} values only", kMostUnique));
    };
    if (!a.contains.empty()) return refused();
    items->unique = true;
    std::vector<const JsonTree*> values;
    for (size_t i = 0; i <= places; ++i) {
      const GoalId goal = alternatives_.Id(alternatives_.ItemGoal(a, i));
      ArrayItems::Place place;
      GYRE_ASSIGN_OR_RETURN(const std::vector<Alternative>* all, alternatives_.Of(goal));
      static const JsonTree kNull = {.kind = JsonKind::kNull}, kTrue = {.kind = JsonKind::kTrue},
                            kFalse = {.kind = JsonKind::kFalse};
      for (const Alternative& alternative : *all) {
        std::vector<const JsonTree*> few;
        if (alternative.among.has_value()) {
          few = *alternative.among;
        } else if ((alternative.types & ~(kNullType | kBoolType)) == 0) {
          for (const JsonTree* v : {&kNull, &kTrue, &kFalse}) {
            GYRE_ASSIGN_OR_RETURN(const bool reaches, alternatives_.Reaches(*v, alternative));
            if (reaches) few.push_back(v);
          }
        } else if (i < a.max) {
          return refused();
        }
        for (const JsonTree* v : few) {
          auto at = std::find_if(values.begin(), values.end(), [v](const JsonTree* o) { return Equal(*v, *o); });
          if (at == values.end()) at = values.insert(at, v);
          const auto number = static_cast<uint32_t>(at - values.begin());
          const auto same = std::find_if(place.values.begin(), place.values.end(),
                                         [number](const auto& p) { return p.first == number; });
          const ExprId text = Among(alternative, *v);
          if (same == place.values.end()) {
            place.values.emplace_back(number, text);
          } else {
            same->second = e_.Alt(same->second, text);
          }
        }
        if (values.size() > kMostUnique) return refused();
      }
      items->places.push_back(std::move(place));
    }
    return static_cast<const ArrayItems*>(e_.Own(std::move(items)))->Whole(&e_);
  }

  // ---- The arguments of a call whose form is not JSON

  // Whether a text of the form is read as JSON, or as one of its or Python's words.
  ExprId ReadAsJson() {
    ByteSet any;
    any.set();
    // Of objects, lists and strings the beginning is enough, as no expression has all of them. A date, an address or an
    // id begins as a number and is a text.
    const ExprId begun = text_.Match("[\\s{\\[\"]"), words = text_.Match("(?:true|false|null|True|False|None)\\s*");
    const ExprId number = text_.Match("-?(?:0|[1-9]\\d*)(?:\\.\\d+)?(?:[eE][+-]?\\d+)?\\s*");
    return e_.Alt({e_.Concat(begun, e_.Star(e_.Bytes(any))), words, number});
  }

  // The strings that a goal takes, as they stand. `any`: also those that look like JSON.
  StatusOr<ExprId> PlainTexts(GoalId goal, bool any) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<Alternative>* all, alternatives_.Of(goal));
    std::vector<ExprId> ways;
    for (const Alternative& a : *all) {
      if (a.among.has_value()) {
        for (const std::string& text : Strings(*a.among)) ways.push_back(e_.Text(text));
      } else if ((a.types & kStringType) != 0) {
        GYRE_ASSIGN_OR_RETURN(const ExprId string, text_.String(a.string, Writing::kPlain));
        std::vector<ExprId> parts = {string};
        for (const std::string& text : Strings(a.except)) parts.push_back(e_.Not(e_.Text(text)));
        ways.push_back(parts.size() == 1 ? parts[0] : e_.And(std::move(parts)));
      }
    }
    std::vector<ExprId> parts = {text_.Without(e_.Alt(std::move(ways)), form_->style.avoid)};
    if (!any) parts.push_back(e_.Not(ReadAsJson()));
    if (form_->drops_lines) parts.push_back(e_.Not(text_.Match("\\n[\\s\\S]*|[\\s\\S]*\\n")));
    return parts.size() == 1 ? parts[0] : e_.And(std::move(parts));
  }

  // The words of Python for what a goal takes.
  StatusOr<ExprId> PythonWords(GoalId goal) {
    static const JsonTree kNull = {.kind = JsonKind::kNull}, kTrue = {.kind = JsonKind::kTrue},
                          kFalse = {.kind = JsonKind::kFalse};
    std::vector<ExprId> ways;
    for (const auto& [word, value] : {std::pair("None", &kNull), {"True", &kTrue}, {"False", &kFalse}}) {
      GYRE_ASSIGN_OR_RETURN(const bool taken, alternatives_.Reaches(*value, goal));
      if (taken) ways.push_back(e_.Text(word));
    }
    return e_.Alt(std::move(ways));
  }

  // Whether a goal takes anything but strings.
  StatusOr<bool> TakesOthers(GoalId goal) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<Alternative>* all, alternatives_.Of(goal));
    return std::any_of(all->begin(), all->end(), [](const Alternative& a) {
      return a.among.has_value() ? Strings(*a.among).size() < a.among->size() : (a.types & ~kStringType) != 0;
    });
  }

  // A rule for the value of an argument, with what stands behind it.
  StatusOr<RuleId> ArgumentRule(const std::string& name, GoalId goal) {
    const bool text = form_->texts && form_->text_names.contains(name);
    const auto [at, fresh] = argument_rules_.emplace(std::pair(goal, text), 0);
    if (!fresh) return at->second;
    at->second = grammar_.AddRule();
    std::vector<ExprId> ways;
    GYRE_ASSIGN_OR_RETURN(const bool others, TakesOthers(goal));
    if (form_->texts) {
      GYRE_ASSIGN_OR_RETURN(const ExprId texts, PlainTexts(goal, text || form_->says_text));
      ways.push_back(form_->says_text ? e_.Concat(e_.Text("true\">"), texts) : texts);
    }
    if (!form_->texts || (form_->says_text ? others : !text)) {
      ExprId value = e_.Call(RuleOf(goal));
      if (form_->texts) {
        GYRE_ASSIGN_OR_RETURN(const ExprId words, PythonWords(goal));
        value = e_.Alt(value, words);
      }
      ways.push_back(form_->says_text ? e_.Concat(e_.Text("false\">"), value) : value);
    }
    grammar_.SetBody(at->second, e_.Concat(e_.Alt(std::move(ways)), form_->value_end));
    return at->second;
  }

  // The beginning of an argument up to its value.
  StatusOr<ExprId> ArgumentName(const std::string& name) {
    const bool bare = name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/") ==
                      std::string::npos;
    const bool ends = !form_->name_end.empty() && name.find(form_->name_end) != std::string::npos;
    if (name.empty() || name.size() > kLongestName || ends || (form_->bare_names && !bare)) {
      return Unimplemented("the parameter \"{}\" has a name that a call of the model's form can't have", name);
    }
    const ExprId text = form_->style.kind == JsonStyle::Kind::kBraces ? text_.Name(name) : e_.Text(name);
    return e_.Concat({form_->key, text, form_->value});
  }

  // ---- Objects

  // Names that are not listed.
  struct FreeNames {
    Writing writing;
    ExprId all;
    std::function<std::string(const std::string&)> inner;  // a name as it is written
    std::function<ExprId(ExprId)> whole;                   // with what stands around it
  };
  FreeNames FreeNamesOf(const ArgumentsForm* form) {
    if (form == nullptr || form->object) {
      return {.writing = text_.name_writing(),
              .all = text_.AnyString(text_.name_writing()),
              .inner = [this](const std::string& name) { return text_.InnerName(name); },
              .whole = [this](ExprId names) { return text_.NameQuotes(names); }};
    }
    // Between tags any name of ASCII is read back as it stands: their reader takes what is before the end.
    const ExprId any = text_.Match(form->texts ? "[ -~]{1,64}" : "[A-Za-z_][A-Za-z0-9_]{0,63}");
    return {.writing = Writing::kPlain,
            .all = text_.Without(any, form->name_end),
            .inner = [](const std::string& name) { return name; },
            .whole =
                [this, form](ExprId names) {
                  return e_.Concat({form->key, names, form->value});
                }};
  }

  // Whether a name may be one, by "propertyNames".
  StatusOr<bool> IsName(const ObjectLimits& o, const std::string& name) {
    JsonTree text;
    text.kind = JsonKind::kString;
    text.text = name;
    for (const auto& [goal, schema] : o.names) {
      GYRE_ASSIGN_OR_RETURN(const bool reaches, alternatives_.Reaches(text, alternatives_.Id(goal)));
      if (!reaches) return false;
    }
    return true;
  }

  // The names that a goal of "propertyNames" takes.
  StatusOr<ExprId> Names(const Goal& goal, const FreeNames& free) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<Alternative>* all, alternatives_.Of(alternatives_.Id(goal)));
    std::vector<ExprId> ways;
    for (const Alternative& a : *all) {
      if (a.among.has_value()) {
        for (const std::string& text : Strings(*a.among)) ways.push_back(e_.Text(free.inner(text)));
        continue;
      }
      if ((a.types & kStringType) == 0) continue;
      GYRE_ASSIGN_OR_RETURN(const ExprId string, text_.String(a.string, free.writing));
      std::vector<ExprId> parts = {string};
      for (const std::string& text : Strings(a.except)) {
        parts.push_back(e_.Not(AnyWriting(&e_, text, free.writing)));
      }
      ways.push_back(parts.size() == 1 ? parts[0] : e_.And(std::move(parts)));
    }
    return e_.Alt(std::move(ways));
  }

  StatusOr<ExprId> Object(const ObjectLimits& o, bool any_order, const ArgumentsForm* form = nullptr) {
    const bool named = form != nullptr && !form->object;
    const ObjectMembers::Punctuation named_arguments = {.open = kEpsilon,
                                                        .colon = kEpsilon,
                                                        .comma = named ? form->separator : kEpsilon,
                                                        .close = named ? form->close : kEpsilon,
                                                        .space = kEpsilon};
    auto members = std::make_unique<ObjectMembers>(named ? named_arguments : ObjectMembers::Json(&e_, text_.space()));
    members->max = o.max;

    std::vector<std::string> order;
    std::set<std::string> known;
    size_t sets = 0;
    for (const ObjectLimits::Members& m : o.members) {
      size_t more = 0;
      for (const auto& [name, goal] : m.names) {
        if (known.insert(name).second) order.push_back(name), ++more;
      }
      sets += more > 0;
    }
    // Names that one schema lists have its order; where several do there is none.
    if (form != nullptr) any_order = order.size() <= kMostInAnyOrder;
    const size_t listed = sets > 1 || any_order ? 0 : order.size();
    for (const std::string& r : o.required) {
      if (known.insert(r).second) order.push_back(r);
    }
    for (const auto& [name, goal] : o.at) {
      if (known.insert(name).second) order.push_back(name);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      const std::string& name = order[i];
      const bool required = std::find(o.required.begin(), o.required.end(), name) != o.required.end();
      GYRE_ASSIGN_OR_RETURN(const bool is_name, IsName(o, name));
      if (!is_name || o.forbidden.contains(name)) {
        if (required) return kNothing;
        continue;
      }
      GYRE_ASSIGN_OR_RETURN(Goal goal, alternatives_.MemberGoal(o, name));
      const GoalId id = alternatives_.Id(std::move(goal));
      if (!required && !alternatives_.Possible(id)) continue;
      ObjectMembers::Member member{.name = kNothing, .rule = 0, .required = required};
      if (named) {
        GYRE_ASSIGN_OR_RETURN(member.name, ArgumentName(name));
        GYRE_ASSIGN_OR_RETURN(member.rule, ArgumentRule(name, id));
      } else {
        member.name = text_.Name(name);
        member.rule = RuleOf(id);
      }
      (i < listed ? members->fixed : members->loose).push_back(member);
    }
    known.insert(o.forbidden.begin(), o.forbidden.end());
    GYRE_RETURN_IF_ERROR(AddFree(o, known, form, members.get()));
    members->min = o.min <= o.required.size() ? 0 : o.min;
    if (members->min > 1 && !members->free.empty()) {
      // Two free names may be the same one.
      return document_.Refused(o.counted, "minProperties", "names that are not listed can't be counted above 1");
    }
    return static_cast<const ObjectMembers*>(e_.Own(std::move(members)))->Whole(&e_);
  }

  // Names that are not listed, by the patterns that they match.
  Status AddFree(const ObjectLimits& o, const std::set<std::string>& known, const ArgumentsForm* form,
                 ObjectMembers* members) {
    const FreeNames free = FreeNamesOf(form);
    struct NameKind {
      std::vector<ExprId> names;  // in all of them
      std::set<std::string> matched;
    };
    std::vector<NameKind> kinds = {{}};
    std::set<std::string> patterns;
    for (const ObjectLimits::Members& m : o.members) {
      for (const auto& [pattern, goal] : m.patterns) patterns.insert(pattern);
    }
    auto goal_of = [&](const NameKind& kind) {
      Goal goal;
      for (const ObjectLimits::Members& m : o.members) {
        bool rest = true;
        for (const auto& [pattern, g] : m.patterns) {
          if (kind.matched.contains(pattern)) goal = SchemaAlternatives::Both(goal, g), rest = false;
        }
        if (rest) goal = SchemaAlternatives::Both(goal, m.rest);
      }
      return alternatives_.Id(std::move(goal));
    };
    for (const std::string& pattern : patterns) {
      GYRE_ASSIGN_OR_RETURN(const ExprId matches, text_.Pattern(pattern, free.writing));
      std::vector<NameKind> split;
      for (const NameKind& kind : kinds) {
        NameKind in = kind, out = kind;
        in.names.push_back(matches);
        in.matched.insert(pattern);
        out.names.push_back(e_.Not(matches));
        if (e_.And(in.names) != kNothing) split.push_back(std::move(in));
        split.push_back(std::move(out));
      }
      kinds = std::move(split);
      if (kinds.size() > kMostNameKinds) {
        return ResourceExhausted("grammar: the bound of {} kinds of names by patternProperties is passed",
                                 kMostNameKinds);
      }
    }
    ExprId listed = kNothing;
    std::vector<ExprId> limits;
    bool ready = false;
    for (NameKind& kind : kinds) {
      const GoalId goal = goal_of(kind);
      if (!alternatives_.Possible(goal)) continue;
      if (!ready) {
        ready = true;
        std::vector<ExprId> texts;
        for (const std::string& name : known) texts.push_back(e_.Text(free.inner(name)));
        listed = e_.Alt(std::move(texts));
        for (const auto& [names, schema] : o.names) {
          GYRE_ASSIGN_OR_RETURN(const ExprId taken, Names(names, free));
          limits.push_back(taken);
        }
      }
      std::vector<ExprId> all = kind.names;
      all.insert(all.end(), limits.begin(), limits.end());
      all.push_back(free.all);
      if (listed != kNothing) all.push_back(e_.Not(listed));
      const ExprId name = all.size() == 1 ? all[0] : e_.And(std::move(all));
      if (name == kNothing) continue;
      RuleId rule = 0;
      if (form != nullptr && !form->object) {
        GYRE_ASSIGN_OR_RETURN(rule, ArgumentRule("", goal));
      } else {
        rule = RuleOf(goal);
      }
      members->free.push_back({free.whole(name), rule});
    }
    return absl::OkStatus();
  }

  const JsonOptions& options_;
  const ArgumentsForm* const form_;
  SchemaDocument document_;
  Grammar& grammar_;
  Expressions& e_;
  JsonText text_;
  SchemaAlternatives alternatives_;
  std::map<GoalId, RuleId> rules_;
  std::vector<std::pair<GoalId, RuleId>> goals_;
  std::map<std::pair<GoalId, bool>, RuleId> argument_rules_;  // and whether it is a text
};

}  // namespace

StatusOr<Grammar> JsonSchemaGrammar(std::string_view schema, const JsonOptions& options) {
  if (schema.size() > options.bounds.source_bytes) {
    return ResourceExhausted("grammar: the bound of {} bytes of a schema is passed", options.bounds.source_bytes);
  }
  GYRE_ASSIGN_OR_RETURN(JsonTree tree, ReadJson(schema, options.bounds.nesting));
  return JsonSchemaGrammar(std::move(tree), options);
}

StatusOr<Grammar> JsonSchemaGrammar(JsonTree schema, const JsonOptions& options) {
  Grammar grammar(options.bounds);
  GYRE_ASSIGN_OR_RETURN(SchemaDocument document, SchemaDocument::Read(std::move(schema)));
  GYRE_ASSIGN_OR_RETURN(const ExprId value, SchemaGrammar(std::move(document), options, &grammar).Value());
  grammar.SetRoot(grammar.AddRule());
  grammar.SetBody(grammar.root(), value);
  const Status finished = grammar.Finish();
  if (absl::IsInvalidArgument(finished)) return InvalidArgument("no value obeys the schema");
  GYRE_RETURN_IF_ERROR(finished);
  return grammar;
}

StatusOr<ExprId> AddValue(JsonTree schema, Grammar* grammar) {
  GYRE_ASSIGN_OR_RETURN(SchemaDocument document, SchemaDocument::Read(std::move(schema)));
  const JsonOptions options;
  return SchemaGrammar(std::move(document), options, grammar).Value();
}

StatusOr<ExprId> AddArguments(JsonTree schema, const ArgumentsForm& form, Grammar* grammar) {
  GYRE_ASSIGN_OR_RETURN(SchemaDocument document, SchemaDocument::Read(std::move(schema)));
  const JsonOptions options{.compact = form.style.kind == JsonStyle::Kind::kBraces};
  return SchemaGrammar(std::move(document), options, grammar, &form).Arguments();
}

StatusOr<Grammar> JsonObjectGrammar(const JsonOptions& options) {
  return JsonSchemaGrammar(std::string_view(R"({"type": "object"})"), options);
}

}  // namespace gyre::grammar
