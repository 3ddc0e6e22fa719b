// Methods of strings, dicts, lists and loops.
#include <algorithm>
#include <unordered_map>

#include "model/jinja/builtins.h"
#include "model/jinja/print.h"
#include "model/jinja/text.h"
#include "model/utf8.h"

namespace gyre::jinja {
namespace {

using StringMethod = Value (*)(Interpreter&, const std::string&, Arguments&);

bool Affix(const std::string& s, const Arguments& a, bool start) {
  const Value& what = a.positional[0];
  const std::vector<Value> several = what.list() != nullptr ? what.list()->items : std::vector<Value>{what};
  return std::any_of(several.begin(), several.end(), [&](const Value& v) {
    if (v.str() == nullptr)
      Fail("{} first arg must be str or a tuple of str, not {}", start ? "startswith" : "endswith", v.TypeName());
    const std::string& t = *v.str();
    return t.size() <= s.size() && s.compare(start ? 0 : s.size() - t.size(), t.size(), t) == 0;
  });
}

Value RemoveAffix(Interpreter& i, const std::string& s, const Arguments& a, bool start) {
  if (!Affix(s, a, start)) return Text(i, s);
  const std::string* affix = a.positional[0].str();
  if (affix == nullptr) Fail("{} argument must be str, not tuple", start ? "removeprefix" : "removesuffix");
  return Text(i, start ? s.substr(affix->size()) : s.substr(0, s.size() - affix->size()));
}

// Whether all characters have the property, and there is at least one.
Value AllAre(const std::string& s, bool (*is)(char32_t)) {
  for (size_t at = 0; at < s.size();) {
    const size_t n = ValidUtf8Length(s, at);
    if (n == 0 || !is(Utf8Decode(s, at, n))) return Value::Bool(false);
    at += n;
  }
  return Value::Bool(!s.empty());
}

Value Pad(Interpreter& i, const std::string& s, const Arguments& a, bool left) {
  const auto width = static_cast<size_t>(std::clamp<int64_t>(TakeInt(a, 0, "width", 0), 0, 1 << 20));
  const std::string fill = TakeText(i, a, 1, "fillchar", " ");
  if (CountCharacters(fill) != 1) Fail("the fill character must be exactly one character long");
  std::string pad;
  for (size_t n = CountCharacters(s); n < width; ++n) pad += fill;
  return Text(i, left ? pad + s : s + pad);
}

Value FindIn(Interpreter& i, const std::string& s, const Arguments& a, bool from_right, bool must) {
  const std::string what = TakeText(i, a, 0, "sub", "");
  i.budget().Search(s.size(), what.size());
  const size_t at = from_right ? s.rfind(what) : s.find(what);
  if (at == std::string::npos) {
    if (must) Fail("substring not found");
    return Value::Int(-1);
  }
  return Value::Int(static_cast<int64_t>(CountCharacters(std::string_view(s).substr(0, at))));
}

// Replaces {} and {0} and {name}, without format specifications.
Value FormatBraces(Interpreter& i, const std::string& s, Arguments& a) {
  i.budget().Charge(s.size() + Budget::kObject);
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < s.size(); ++at) {
    if ((s[at] == '{' || s[at] == '}') && at + 1 < s.size() && s[at + 1] == s[at]) {
      out += s[at++];
      continue;
    }
    if (s[at] != '{') {
      out += s[at];
      continue;
    }
    i.budget().Step();
    const size_t end = s.find('}', at);
    if (end == std::string::npos) Fail("expected '}}' before end of string");
    const std::string name = s.substr(at + 1, end - at - 1);
    const bool number = !name.empty() && name.size() < 6 &&
                        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    const Value* v = name.empty() ? Given(a, next++, "")
                     : number     ? Given(a, std::stoul(name), "")
                                  : Given(a, SIZE_MAX, name.c_str());
    if (v == nullptr) Fail("format: nothing is given for '{}'", name);
    AppendText(*v, i.budget(), &out);
    at = end;
  }
  return Value::Str(std::move(out));
}

struct MethodEntry {
  const char* arguments;  // in the form that Check reads
  StringMethod method;
};

template <Side side>
Value Stripped(Interpreter& i, const std::string& s, Arguments& a) {
  return Text(i, Strip(i, s, Given(a, 0, "chars"), side));
}

template <bool from_right>
Value Split(Interpreter& i, const std::string& s, Arguments& a) {
  return SplitText(i, s, Given(a, 0, "sep"), TakeInt(a, 1, "maxsplit", -1), from_right);
}

bool NoLetter(char32_t c) { return !Letter(c); }
bool LetterOrDigit(char32_t c) { return Letter(c) || Digit(c); }

const std::unordered_map<std::string, MethodEntry>& StringMethods() {
  static const auto* map = new std::unordered_map<std::string, MethodEntry>{
      {"strip", {"/chars", Stripped<Side::kBoth>}},
      {"lstrip", {"/chars", Stripped<Side::kLeft>}},
      {"rstrip", {"/chars", Stripped<Side::kRight>}},
      {"split", {"sep,maxsplit", Split<false>}},
      {"rsplit", {"sep,maxsplit", Split<true>}},
      {"splitlines", {"keepends", [](Interpreter& i, const std::string& s, Arguments& a) {
         std::vector<Value> out;
         for (std::string& line : Lines(i, s, TakeBool(a, 0, "keepends", false))) out.push_back(Value::Str(std::move(line)));
         return i.NewList(std::move(out));
       }}},
      {"startswith", {"/prefix!", [](Interpreter&, const std::string& s, Arguments& a) { return Value::Bool(Affix(s, a, true)); }}},
      {"endswith", {"/suffix!", [](Interpreter&, const std::string& s, Arguments& a) { return Value::Bool(Affix(s, a, false)); }}},
      {"upper", {"", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Upper(s)); }}},
      {"lower", {"", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Lower(s)); }}},
      {"casefold", {"", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Lower(s)); }}},
      {"capitalize", {"", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Capitalize(s)); }}},
      {"title", {"", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Title(s, NoLetter)); }}},
      {"replace", {"/old!,new!,count", [](Interpreter& i, const std::string& s, Arguments& a) {
         return Value::Str(Replace(i, s, TextOf(i, a.positional[0]), TextOf(i, a.positional[1]), TakeInt(a, 2, "count", -1)));
       }}},
      {"join", {"/iterable!", [](Interpreter& i, const std::string& s, Arguments& a) {
         Arguments by;
         by.positional = {Value::Str(s)};
         return Join(i, Take(a, 0, "iterable"), by);
       }}},
      {"find", {"/sub!", [](Interpreter& i, const std::string& s, Arguments& a) { return FindIn(i, s, a, false, false); }}},
      {"rfind", {"/sub!", [](Interpreter& i, const std::string& s, Arguments& a) { return FindIn(i, s, a, true, false); }}},
      {"index", {"/sub!", [](Interpreter& i, const std::string& s, Arguments& a) { return FindIn(i, s, a, false, true); }}},
      {"count", {"/sub!", [](Interpreter& i, const std::string& s, Arguments& a) {
         const std::string what = TakeText(i, a, 0, "sub", "");
         if (what.empty()) return Value::Int(static_cast<int64_t>(CountCharacters(s)) + 1);
         i.budget().Search(s.size(), what.size());
         int64_t n = 0;
         for (size_t at = s.find(what); at != std::string::npos; at = s.find(what, at + what.size())) ++n;
         return Value::Int(n);
       }}},
      {"isdigit", {"", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, Digit); }}},
      {"isdecimal", {"", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, Digit); }}},
      {"isnumeric", {"", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, Numeric); }}},
      {"isalpha", {"", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, Letter); }}},
      {"isalnum", {"", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, LetterOrDigit); }}},
      {"isspace", {"", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, IsSpace); }}},
      {"isupper", {"", [](Interpreter&, const std::string& s, Arguments&) { return Value::Bool(s == Upper(s) && s != Lower(s)); }}},
      {"islower", {"", [](Interpreter&, const std::string& s, Arguments&) { return Value::Bool(s == Lower(s) && s != Upper(s)); }}},
      {"removeprefix", {"/prefix!", [](Interpreter& i, const std::string& s, Arguments& a) { return RemoveAffix(i, s, a, true); }}},
      {"removesuffix", {"/suffix!", [](Interpreter& i, const std::string& s, Arguments& a) { return RemoveAffix(i, s, a, false); }}},
      {"zfill", {"/width!", [](Interpreter& i, const std::string& s, Arguments& a) {
         const auto width = static_cast<size_t>(std::clamp<int64_t>(TakeInt(a, 0, "width", 0), 0, 1 << 20));
         const size_t n = CountCharacters(s), sign = !s.empty() && (s[0] == '-' || s[0] == '+') ? 1 : 0;
         return Text(i, s.substr(0, sign) + std::string(width > n ? width - n : 0, '0') + s.substr(sign));
       }}},
      {"ljust", {"/width!,fillchar", [](Interpreter& i, const std::string& s, Arguments& a) { return Pad(i, s, a, false); }}},
      {"rjust", {"/width!,fillchar", [](Interpreter& i, const std::string& s, Arguments& a) { return Pad(i, s, a, true); }}},
      {"format", {"*", FormatBraces}},
  };
  return *map;
}

Value DictMethod(const Value& v, const std::string& name) {
  const auto& d = std::get<std::shared_ptr<Dict>>(v.data());
  auto list = [&](auto part) {
    return Value::OfFunction(
        [d, part](Interpreter& i, Arguments& a) {
          Check("", "a dict's items, keys or values", a, "");
          i.budget().Step(d->items().size());
          std::vector<Value> out;
          for (const auto& item : d->items()) out.push_back(part(i, item));
          return i.NewList(std::move(out));
        },
        v);
  };
  if (name == "items") {
    return list([](Interpreter& i, const auto& item) { return i.NewList({item.first, item.second}, true); });
  }
  if (name == "keys") return list([](Interpreter&, const auto& item) { return item.first; });
  if (name == "values") return list([](Interpreter&, const auto& item) { return item.second; });
  if (name == "copy") {
    return Value::OfFunction(
        [d](Interpreter& i, Arguments&) {
          auto copy = std::make_shared<Dict>();
          for (const auto& [key, value] : d->items()) copy->Set(key, value, i.budget());
          return Value::OfDict(std::move(copy));
        },
        v);
  }
  if (name == "get") {
    return Value::OfFunction(
        [d](Interpreter& i, Arguments& a) {
          Check("", "get", a, "/key!,default");
          const Value* found = d->Find(a.positional[0], i.budget());
          return found != nullptr ? *found : Take(a, 1, "default", Value::OfNone());
        },
        v);
  }
  return Value();
}

Value LoopAttribute(const Value& v, const std::string& name) {
  const auto& l = std::get<std::shared_ptr<Loop>>(v.data());
  const std::vector<Value>& items = l->items->items;
  const auto i = static_cast<int64_t>(l->index), n = static_cast<int64_t>(items.size());
  if (name == "index") return Value::Int(i + 1);
  if (name == "index0") return Value::Int(i);
  if (name == "revindex") return Value::Int(n - i);
  if (name == "revindex0") return Value::Int(n - i - 1);
  if (name == "first") return Value::Bool(i == 0);
  if (name == "last") return Value::Bool(i + 1 == n);
  if (name == "length") return Value::Int(n);
  if (name == "depth") return Value::Int(l->depth + 1);
  if (name == "depth0") return Value::Int(l->depth);
  if (name == "previtem") return i > 0 ? items[l->index - 1] : Value::Missing("there is no previous item");
  if (name == "nextitem") return i + 1 < n ? items[l->index + 1] : Value::Missing("there is no next item");
  if (name == "cycle") {
    return Value::OfFunction(
        [l](Interpreter&, Arguments& a) {
          if (a.positional.empty()) Fail("no items for cycling given");
          return a.positional[l->index % a.positional.size()];
        },
        v);
  }
  if (name == "changed") {
    return Value::OfFunction(
        [l](Interpreter& i, Arguments& a) {
          Value now = i.NewList(a.positional, true);
          const bool changed = !Equal(now, l->changed, i.budget());
          i.EmptyAtEnd(l);
          l->changed = std::move(now);
          return Value::Bool(changed);
        },
        v);
  }
  return Value();
}

}  // namespace

Value FindMethod(const Value& v, const std::string& name) {
  if (v.str() != nullptr) {
    const auto it = StringMethods().find(name);
    if (it == StringMethods().end()) return Value();
    return Value::OfFunction([text = v, it](Interpreter& i, Arguments& a) {
      i.budget().Read(text.str()->size());
      Check("", it->first, a, it->second.arguments);
      return it->second.method(i, *text.str(), a);
    });
  }
  if (v.dict() != nullptr) return DictMethod(v, name);
  if (v.loop() != nullptr) return LoopAttribute(v, name);
  if (v.list() != nullptr && (name == "index" || name == "count")) {
    return Value::OfFunction(
        [v, name](Interpreter& i, Arguments& a) {
          int64_t n = 0;
          const auto& items = v.list()->items;
          for (size_t k = 0; k < items.size(); ++k) {
            if (!Equal(items[k], Take(a, 0, "value"), i.budget())) continue;
            if (name == "index") return Value::Int(static_cast<int64_t>(k));
            ++n;
          }
          if (name == "index") Fail("the value is not in the list");
          return Value::Int(n);
        },
        v);
  }
  return Value();
}

}  // namespace gyre::jinja
