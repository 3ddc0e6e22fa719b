// Tests by name, as they follow "is".
#include <unordered_map>

#include "model/jinja/builtins.h"
#include "model/jinja/text.h"

namespace gyre::jinja {
namespace {

bool Sequence(const Value& v) {
  return v.str() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.undefined();
}
Value Other(const Arguments& a) {
  if (a.positional.empty()) Fail("the test needs a value to compare with");
  return a.positional[0];
}
bool IsEqual(Interpreter& i, const Value& v, Arguments& a) { return Equal(v, Other(a), i.budget()); }
bool NotEqual(Interpreter& i, const Value& v, Arguments& a) { return !Equal(v, Other(a), i.budget()); }
bool IsLess(Interpreter& i, const Value& v, Arguments& a) { return Less(v, Other(a), i.budget()); }
bool IsGreater(Interpreter& i, const Value& v, Arguments& a) { return Less(Other(a), v, i.budget()); }
bool AtMost(Interpreter& i, const Value& v, Arguments& a) { return !Less(Other(a), v, i.budget()); }
bool AtLeast(Interpreter& i, const Value& v, Arguments& a) { return !Less(v, Other(a), i.budget()); }
bool IsIn(Interpreter& i, const Value& v, Arguments& a) {
  const Value in = Other(a);
  if (const std::string* s = in.str()) {
    const TextOf what(i, v);
    i.budget().Search(s->size(), (*what).size());
    return s->find(*what) != std::string::npos;
  }
  for (const Value& item : i.Iterate(in)) {
    if (Equal(item, v, i.budget())) return true;
  }
  return false;
}
bool IsCase(Interpreter& i, const Value& v, std::string (*same)(const std::string&),
            std::string (*other)(const std::string&)) {
  const TextOf text(i, v);
  return *text == same(text) && *text != other(text);
}
int64_t Whole(const Value& v) {
  if (!v.integral()) Fail("a {} is no integer", v.TypeName());
  return v.AsInt();
}

const std::unordered_map<std::string, Test>& Tests() {
  static const auto* map = new std::unordered_map<std::string, Test>{
      {"defined", [](Interpreter&, const Value& v, Arguments&) { return !v.undefined(); }},
      {"undefined", [](Interpreter&, const Value& v, Arguments&) { return v.undefined(); }},
      {"none", [](Interpreter&, const Value& v, Arguments&) { return v.none(); }},
      {"string", [](Interpreter&, const Value& v, Arguments&) { return v.str() != nullptr; }},
      {"number", [](Interpreter&, const Value& v, Arguments&) { return v.number(); }},
      {"integer", [](Interpreter&, const Value& v, Arguments&) { return v.Is<int64_t>(); }},
      {"float", [](Interpreter&, const Value& v, Arguments&) { return v.Is<double>(); }},
      {"boolean", [](Interpreter&, const Value& v, Arguments&) { return v.Is<bool>(); }},
      {"true", [](Interpreter&, const Value& v, Arguments&) { return v.Is<bool>() && v.Truthy(); }},
      {"false", [](Interpreter&, const Value& v, Arguments&) { return v.Is<bool>() && !v.Truthy(); }},
      {"mapping",
       [](Interpreter&, const Value& v, Arguments&) { return v.dict() != nullptr && !v.dict()->is_namespace; }},
      {"iterable", [](Interpreter&, const Value& v, Arguments&) { return Sequence(v); }},
      {"sequence", [](Interpreter&, const Value& v, Arguments&) { return Sequence(v); }},
      {"callable", [](Interpreter&, const Value& v, Arguments&) { return v.function() != nullptr; }},
      {"equalto", IsEqual},
      {"eq", IsEqual},
      {"==", IsEqual},
      {"ne", NotEqual},
      {"!=", NotEqual},
      {"lt", IsLess},
      {"lessthan", IsLess},
      {"<", IsLess},
      {"gt", IsGreater},
      {"greaterthan", IsGreater},
      {">", IsGreater},
      {"le", AtMost},
      {"<=", AtMost},
      {"ge", AtLeast},
      {">=", AtLeast},
      {"sameas",
       [](Interpreter& i, const Value& v, Arguments& a) {
         return v.data().index() == Other(a).data().index() && Equal(v, Other(a), i.budget());
       }},
      {"in", IsIn},
      {"odd", [](Interpreter&, const Value& v, Arguments&) { return Whole(v) % 2 != 0; }},
      {"even", [](Interpreter&, const Value& v, Arguments&) { return Whole(v) % 2 == 0; }},
      {"divisibleby",
       [](Interpreter&, const Value& v, Arguments& a) {
         const int64_t by = Whole(Other(a));
         if (by == 0) Fail("division by zero");
         return by == -1 || Whole(v) % by == 0;
       }},
      {"lower", [](Interpreter& i, const Value& v, Arguments&) { return IsCase(i, v, Lower, Upper); }},
      {"upper", [](Interpreter& i, const Value& v, Arguments&) { return IsCase(i, v, Upper, Lower); }},
      {"filter", [](Interpreter& i, const Value& v, Arguments&) { return FindFilter(TextOf(i, v)) != nullptr; }},
      {"test", [](Interpreter& i, const Value& v, Arguments&) { return FindTest(TextOf(i, v)) != nullptr; }},
  };
  return *map;
}

}  // namespace

Test FindTest(const std::string& name) {
  const auto it = Tests().find(name);
  return it == Tests().end() ? nullptr : it->second;
}

}  // namespace gyre::jinja
