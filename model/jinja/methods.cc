// Methods of strings, dicts, lists and loops, and the global functions.
#include <algorithm>
#include <unordered_map>

#include "model/jinja/builtins.h"
#include "model/jinja/text.h"
#include "model/utf8.h"

namespace gyre::jinja {
namespace {

using StringMethod = Value (*)(Interpreter&, const std::string&, Arguments&);

bool Affix(const std::string& s, const Arguments& a, bool start) {
  if (a.positional.empty()) Fail("{} needs an argument", start ? "startswith" : "endswith");
  const Value& what = a.positional[0];
  const std::vector<Value> several = what.list() != nullptr ? what.list()->items : std::vector<Value>{what};
  return std::any_of(several.begin(), several.end(), [&](const Value& v) {
    if (v.str() == nullptr)
      Fail("{} first arg must be str or a tuple of str, not {}", start ? "startswith" : "endswith", v.TypeName());
    const std::string& t = *v.str();
    return t.size() <= s.size() && s.compare(start ? 0 : s.size() - t.size(), t.size(), t) == 0;
  });
}

// All characters are such, and there are some.
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
  const std::string fill = TakeText(a, 1, "fillchar", " ");
  if (CountCharacters(fill) != 1) Fail("the fill character must be exactly one character long");
  std::string pad;
  for (size_t n = CountCharacters(s); n < width; ++n) pad += fill;
  return Text(i, left ? pad + s : s + pad);
}

Value FindIn(const std::string& s, const Arguments& a, bool from_right, bool must) {
  const std::string what = TakeText(a, 0, "sub", "");
  const size_t at = from_right ? s.rfind(what) : s.find(what);
  if (at == std::string::npos) {
    if (must) Fail("substring not found");
    return Value::Int(-1);
  }
  return Value::Int(static_cast<int64_t>(CountCharacters(std::string_view(s).substr(0, at))));
}

const std::unordered_map<std::string, StringMethod>& StringMethods() {
  static const auto* map = new std::unordered_map<std::string, StringMethod>{
      {"strip", [](Interpreter& i, const std::string& s, Arguments& a) { return Text(i, Strip(s, Given(a, 0, "chars"), Side::kBoth)); }},
      {"lstrip", [](Interpreter& i, const std::string& s, Arguments& a) { return Text(i, Strip(s, Given(a, 0, "chars"), Side::kLeft)); }},
      {"rstrip", [](Interpreter& i, const std::string& s, Arguments& a) { return Text(i, Strip(s, Given(a, 0, "chars"), Side::kRight)); }},
      {"split", [](Interpreter& i, const std::string& s, Arguments& a) { return SplitText(i, s, Given(a, 0, "sep"), TakeInt(a, 1, "maxsplit", -1), false); }},
      {"rsplit", [](Interpreter& i, const std::string& s, Arguments& a) { return SplitText(i, s, Given(a, 0, "sep"), TakeInt(a, 1, "maxsplit", -1), true); }},
      {"splitlines", [](Interpreter& i, const std::string& s, Arguments& a) {
         std::vector<Value> out;
         for (std::string& line : Lines(s, TakeBool(a, 0, "keepends", false))) out.push_back(Text(i, std::move(line)));
         return Value::OfList(std::move(out));
       }},
      {"startswith", [](Interpreter&, const std::string& s, Arguments& a) { return Value::Bool(Affix(s, a, true)); }},
      {"endswith", [](Interpreter&, const std::string& s, Arguments& a) { return Value::Bool(Affix(s, a, false)); }},
      {"upper", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Upper(s)); }},
      {"lower", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Lower(s)); }},
      {"casefold", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Lower(s)); }},
      {"capitalize", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Capitalize(s)); }},
      {"title", [](Interpreter& i, const std::string& s, Arguments&) { return Text(i, Title(s, [](char32_t c) { return !Letter(c); })); }},
      {"replace", [](Interpreter& i, const std::string& s, Arguments& a) {
         if (a.positional.size() < 2) Fail("replace needs what is replaced and by what");
         return Text(i, Replace(i, s, a.positional[0].ToString(), a.positional[1].ToString(), TakeInt(a, 2, "count", -1)));
       }},
      {"join", [](Interpreter& i, const std::string& s, Arguments& a) {
         Arguments by;
         by.positional = {Value::Str(s)};
         return Join(i, Take(a, 0, "iterable"), by);
       }},
      {"find", [](Interpreter&, const std::string& s, Arguments& a) { return FindIn(s, a, false, false); }},
      {"rfind", [](Interpreter&, const std::string& s, Arguments& a) { return FindIn(s, a, true, false); }},
      {"index", [](Interpreter&, const std::string& s, Arguments& a) { return FindIn(s, a, false, true); }},
      {"count", [](Interpreter& i, const std::string& s, Arguments& a) {
         const std::string what = TakeText(a, 0, "sub", "");
         if (what.empty()) return Value::Int(static_cast<int64_t>(CountCharacters(s)) + 1);
         const Value by = Value::Str(what);
         return Value::Int(static_cast<int64_t>(SplitText(i, s, &by, -1, false).list()->items.size()) - 1);
       }},
      {"isdigit", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, Digit); }},
      {"isdecimal", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, Digit); }},
      {"isnumeric", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, Digit); }},
      {"isalpha", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, Letter); }},
      {"isalnum", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, [](char32_t c) { return Letter(c) || Digit(c); }); }},
      {"isspace", [](Interpreter&, const std::string& s, Arguments&) { return AllAre(s, IsSpace); }},
      {"isupper", [](Interpreter&, const std::string& s, Arguments&) { return Value::Bool(s == Upper(s) && s != Lower(s)); }},
      {"islower", [](Interpreter&, const std::string& s, Arguments&) { return Value::Bool(s == Lower(s) && s != Upper(s)); }},
      {"removeprefix", [](Interpreter& i, const std::string& s, Arguments& a) { return Text(i, Affix(s, a, true) ? s.substr(a.positional[0].ToString().size()) : s); }},
      {"removesuffix", [](Interpreter& i, const std::string& s, Arguments& a) { return Text(i, Affix(s, a, false) ? s.substr(0, s.size() - a.positional[0].ToString().size()) : s); }},
      {"zfill", [](Interpreter& i, const std::string& s, Arguments& a) {
         const auto width = static_cast<size_t>(std::clamp<int64_t>(TakeInt(a, 0, "width", 0), 0, 1 << 20));
         const size_t n = CountCharacters(s), sign = !s.empty() && (s[0] == '-' || s[0] == '+') ? 1 : 0;
         return Text(i, s.substr(0, sign) + std::string(width > n ? width - n : 0, '0') + s.substr(sign));
       }},
      {"ljust", [](Interpreter& i, const std::string& s, Arguments& a) { return Pad(i, s, a, false); }},
      {"rjust", [](Interpreter& i, const std::string& s, Arguments& a) { return Pad(i, s, a, true); }},
      {"format", [](Interpreter& i, const std::string& s, Arguments& a) {
         // {} and {0} and {name}, without format specifications.
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
           const size_t end = s.find('}', at);
           if (end == std::string::npos) Fail("expected '}}' before end of string");
           const std::string name = s.substr(at + 1, end - at - 1);
           const bool number = !name.empty() && name.size() < 6 && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
           const Value* v = name.empty() ? Given(a, next++, "") : number ? Given(a, std::stoul(name), "") : Given(a, SIZE_MAX, name.c_str());
           if (v == nullptr) Fail("format: nothing is given for '{}'", name);
           const std::string text = v->ToString();
           i.Charge(text.size());
           out += text;
           at = end;
         }
         return Text(i, std::move(out));
       }},
  };
  return *map;
}

Value DictMethod(const std::shared_ptr<Dict>& d, const std::string& name) {
  auto list = [&](auto part) {
    return Value::OfFunction([d, part](Interpreter&, Arguments&) {
      std::vector<Value> out;
      for (const auto& item : d->items()) out.push_back(part(item));
      return Value::OfList(std::move(out));
    });
  };
  if (name == "items") return list([](const auto& i) { return Value::OfList({i.first, i.second}, true); });
  if (name == "keys") return list([](const auto& i) { return i.first; });
  if (name == "values") return list([](const auto& i) { return i.second; });
  if (name == "copy") {
    return Value::OfFunction([d](Interpreter&, Arguments&) { return Value::OfDict(std::make_shared<Dict>(*d)); });
  }
  if (name == "get") {
    return Value::OfFunction([d](Interpreter&, Arguments& a) {
      if (a.positional.empty()) Fail("get needs a key");
      const Value* found = d->Find(a.positional[0]);
      return found != nullptr ? *found : Take(a, 1, "default", Value::OfNone());
    });
  }
  return Value();
}

Value LoopAttribute(const std::shared_ptr<Loop>& l, const std::string& name) {
  const auto i = static_cast<int64_t>(l->index), n = static_cast<int64_t>(l->items.size());
  if (name == "index") return Value::Int(i + 1);
  if (name == "index0") return Value::Int(i);
  if (name == "revindex") return Value::Int(n - i);
  if (name == "revindex0") return Value::Int(n - i - 1);
  if (name == "first") return Value::Bool(i == 0);
  if (name == "last") return Value::Bool(i + 1 == n);
  if (name == "length") return Value::Int(n);
  if (name == "depth") return Value::Int(l->depth + 1);
  if (name == "depth0") return Value::Int(l->depth);
  if (name == "previtem") return i > 0 ? l->items[l->index - 1] : Value::Missing("there is no previous item");
  if (name == "nextitem") return i + 1 < n ? l->items[l->index + 1] : Value::Missing("there is no next item");
  if (name == "cycle") {
    return Value::OfFunction([l](Interpreter&, Arguments& a) {
      if (a.positional.empty()) Fail("no items for cycling given");
      return a.positional[l->index % a.positional.size()];
    });
  }
  if (name == "changed") {
    return Value::OfFunction([l](Interpreter&, Arguments& a) {
      const Value now = Value::OfList(a.positional, true);
      const bool changed = !Equal(now, l->changed);
      l->changed = now;
      return Value::Bool(changed);
    });
  }
  return Value();
}

}  // namespace

Value FindMethod(const Value& v, const std::string& name) {
  if (v.str() != nullptr) {
    const auto it = StringMethods().find(name);
    if (it == StringMethods().end()) return Value();
    return Value::OfFunction(
        [text = v, method = it->second](Interpreter& i, Arguments& a) { return method(i, *text.str(), a); });
  }
  if (v.dict() != nullptr) return DictMethod(std::get<std::shared_ptr<Dict>>(v.data()), name);
  if (v.loop() != nullptr) return LoopAttribute(std::get<std::shared_ptr<Loop>>(v.data()), name);
  if (v.list() != nullptr && (name == "index" || name == "count")) {
    return Value::OfFunction([v, name](Interpreter&, Arguments& a) {
      int64_t n = 0;
      const auto& items = v.list()->items;
      for (size_t k = 0; k < items.size(); ++k) {
        if (!Equal(items[k], Take(a, 0, "value"))) continue;
        if (name == "index") return Value::Int(static_cast<int64_t>(k));
        ++n;
      }
      if (name == "index") Fail("the value is not in the list");
      return Value::Int(n);
    });
  }
  return Value();
}

void AddGlobals(Scope* scope) {
  auto& names = scope->names;
  names["range"] = Value::OfFunction([](Interpreter& i, Arguments& a) {
    const size_t n = a.positional.size();
    if (n < 1 || n > 3) Fail("range takes 1 to 3 arguments, not {}", n);
    const int64_t begin = n == 1 ? 0 : TakeInt(a, 0, "start", 0), end = TakeInt(a, n == 1 ? 0 : 1, "stop", 0),
                  step = TakeInt(a, 2, "step", 1);
    if (step == 0) Fail("range() arg 3 must not be zero");
    std::vector<Value> out;
    for (int64_t k = begin; step > 0 ? k < end : k > end;) {
      i.Charge(sizeof(Value));
      out.push_back(Value::Int(k));
      if (__builtin_add_overflow(k, step, &k)) break;
    }
    return Value::OfList(std::move(out));
  });
  auto make_dict = [](bool is_namespace) {
    return [is_namespace](Interpreter&, Arguments& a) {
      auto d = std::make_shared<Dict>();
      for (const Value& v : a.positional) {
        if (v.dict() == nullptr) Fail("expected a mapping, found {}", v.TypeName());
        for (const auto& [key, value] : v.dict()->items()) d->Set(key, value);
      }
      for (const auto& [name, v] : a.named) d->Set(Value::Str(name), v);
      d->is_namespace = is_namespace;
      return Value::OfDict(std::move(d));
    };
  };
  names["dict"] = Value::OfFunction(make_dict(false));
  names["namespace"] = Value::OfFunction(make_dict(true));
  names["raise_exception"] = Value::OfFunction([](Interpreter&, Arguments& a) -> Value {
    throw Error{InvalidArgument("{}", TakeText(a, 0, "message", "the template refuses these messages"))};
  });
  names["strftime_now"] = Value::OfFunction([](Interpreter& i, Arguments& a) {
    const std::string format = TakeText(a, 0, "format", "%Y-%m-%d");
    if (format.empty() || format.size() > 1000) return Value::Str("");
    char buffer[4096] = {};
    const size_t n = std::strftime(buffer, sizeof buffer, format.c_str(), &i.now());
    return Text(i, std::string(buffer, n));
  });
}

}  // namespace gyre::jinja
