// Tests by name, as they follow "is".
#include <unordered_map>

#include "model/jinja/builtins.h"
#include "model/jinja/text.h"

namespace gyre::jinja {
namespace {

bool Sequence(const Value& v) {
  return v.str() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.undefined();
}
// The value that a test compares with. A test whose only argument has a name may get it by that.
const Value& Other(const Arguments& a) { return a.positional.empty() ? a.named[0].second : a.positional[0]; }
bool IsEqual(Interpreter& i, const Value& v, Arguments& a) { return Equal(v, Other(a), i.budget()); }
bool NotEqual(Interpreter& i, const Value& v, Arguments& a) { return !Equal(v, Other(a), i.budget()); }
bool IsLess(Interpreter& i, const Value& v, Arguments& a) { return Less(v, Other(a), i.budget()); }
bool IsGreater(Interpreter& i, const Value& v, Arguments& a) { return Less(Other(a), v, i.budget()); }
bool IsAtMost(Interpreter& i, const Value& v, Arguments& a) { return AtMost(v, Other(a), i.budget()); }
bool IsAtLeast(Interpreter& i, const Value& v, Arguments& a) { return AtMost(Other(a), v, i.budget()); }
bool IsIn(Interpreter& i, const Value& v, Arguments& a) { return i.In(v, Other(a)); }
bool IsCase(Interpreter& i, const Value& v, std::string (*same)(const std::string&),
            std::string (*other)(const std::string&)) {
  const TextOf text(i, v);
  return *text == same(text) && *text != other(text);
}
int64_t Whole(const Value& v) {
  FailOnOverflow(v.big() != nullptr);
  if (!v.integral()) Fail("a {} is no integer", v.TypeName());
  return v.AsInt();
}
bool Odd(const Value& v) {
  if (!v.whole()) Fail("a {} is no integer", v.TypeName());
  return (v.Decimal().back() - '0') % 2 != 0;
}

struct TestEntry {
  const char* arguments;  // in the form that Check reads
  Test test;
};

const std::unordered_map<std::string, TestEntry>& Tests() {
  constexpr const char* kOther = "/other!";
  static const auto* map = new std::unordered_map<std::string, TestEntry>{
      {"defined", {"", [](Interpreter&, const Value& v, Arguments&) { return !v.undefined(); }}},
      {"undefined", {"", [](Interpreter&, const Value& v, Arguments&) { return v.undefined(); }}},
      {"none", {"", [](Interpreter&, const Value& v, Arguments&) { return v.none(); }}},
      {"string", {"", [](Interpreter&, const Value& v, Arguments&) { return v.str() != nullptr; }}},
      {"number", {"", [](Interpreter&, const Value& v, Arguments&) { return v.number(); }}},
      {"integer", {"", [](Interpreter&, const Value& v, Arguments&) { return v.Is<int64_t>() || v.big() != nullptr; }}},
      {"float", {"", [](Interpreter&, const Value& v, Arguments&) { return v.Is<double>(); }}},
      {"boolean", {"", [](Interpreter&, const Value& v, Arguments&) { return v.Is<bool>(); }}},
      {"true", {"", [](Interpreter&, const Value& v, Arguments&) { return v.Is<bool>() && v.Truthy(); }}},
      {"false", {"", [](Interpreter&, const Value& v, Arguments&) { return v.Is<bool>() && !v.Truthy(); }}},
      {"mapping",
       {"", [](Interpreter&, const Value& v, Arguments&) { return v.dict() != nullptr && !v.dict()->is_namespace; }}},
      {"iterable", {"", [](Interpreter&, const Value& v, Arguments&) { return Sequence(v); }}},
      {"sequence", {"", [](Interpreter&, const Value& v, Arguments&) { return Sequence(v); }}},
      // Jinja2 counts an undefined value as callable; the call itself then fails.
      {"callable",
       {"", [](Interpreter&, const Value& v, Arguments&) { return v.function() != nullptr || v.undefined(); }}},
      {"equalto", {kOther, IsEqual}},
      {"eq", {kOther, IsEqual}},
      {"==", {kOther, IsEqual}},
      {"ne", {kOther, NotEqual}},
      {"!=", {kOther, NotEqual}},
      {"lt", {kOther, IsLess}},
      {"lessthan", {kOther, IsLess}},
      {"<", {kOther, IsLess}},
      {"gt", {kOther, IsGreater}},
      {"greaterthan", {kOther, IsGreater}},
      {">", {kOther, IsGreater}},
      {"le", {kOther, IsAtMost}},
      {"<=", {kOther, IsAtMost}},
      {"ge", {kOther, IsAtLeast}},
      {">=", {kOther, IsAtLeast}},
      {"sameas",
       {"other!",
        [](Interpreter& i, const Value& v, Arguments& a) {
          return v.data().index() == Other(a).data().index() && Equal(v, Other(a), i.budget());
        }}},
      {"in", {"seq!", IsIn}},
      {"odd", {"", [](Interpreter&, const Value& v, Arguments&) { return Odd(v); }}},
      {"even", {"", [](Interpreter&, const Value& v, Arguments&) { return !Odd(v); }}},
      {"divisibleby",
       {"num!",
        [](Interpreter&, const Value& v, Arguments& a) {
          const int64_t by = Whole(Other(a));
          if (by == 0) Fail("division by zero");
          return by == -1 || Whole(v) % by == 0;
        }}},
      {"lower", {"", [](Interpreter& i, const Value& v, Arguments&) { return IsCase(i, v, Lower, Upper); }}},
      {"upper", {"", [](Interpreter& i, const Value& v, Arguments&) { return IsCase(i, v, Upper, Lower); }}},
      {"filter", {"", [](Interpreter& i, const Value& v, Arguments&) { return FindFilter(TextOf(i, v)) != nullptr; }}},
      {"test", {"", [](Interpreter& i, const Value& v, Arguments&) { return FindTest(TextOf(i, v)) != nullptr; }}},
  };
  return *map;
}

}  // namespace

Test FindTest(const std::string& name) {
  const auto it = Tests().find(name);
  return it == Tests().end() ? nullptr : it->second.test;
}

bool Interpreter::ApplyTest(const std::string& name, const Value& v, Arguments& arguments) {
  const auto it = Tests().find(name);
  if (it == Tests().end()) Fail("the test '{}' is not known", name);
  Check("test", name, arguments, it->second.arguments);
  return it->second.test(*this, v, arguments);
}

}  // namespace gyre::jinja
