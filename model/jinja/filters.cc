// Filters by name, as Jinja has them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "model/jinja/builtins.h"
#include "model/jinja/list_filters.h"
#include "model/jinja/print.h"
#include "model/jinja/text.h"
#include "model/utf8.h"

namespace gyre::jinja {
namespace {

// Takes the sign from the text of a number.
std::string TakeSign(std::string_view* text) {
  if (text->empty() || ((*text)[0] != '-' && (*text)[0] != '+')) return "";
  std::string sign((*text)[0] == '-' ? "-" : "");
  text->remove_prefix(1);
  return sign;
}

// The text of a number without its underscores. Each stands between two digits; nullopt: one does not.
std::optional<std::string> WithoutUnderscores(std::string_view text, int base) {
  const auto digit = [&](size_t k) { return k < text.size() && DigitValue(text[k]) < base; };
  std::string out;
  for (size_t k = 0; k < text.size(); ++k) {
    if (text[k] != '_') {
      out += text[k];
    } else if (k == 0 || !digit(k - 1) || !digit(k + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

// Reads a whole number as Python's int(text, base) does; nullopt: it is none.
std::optional<Value> ReadWhole(Interpreter& i, std::string_view text, int base) {
  const std::string sign = TakeSign(&text);
  const auto prefix = [&](char lower, int its_base) {
    if ((base != 0 && base != its_base) || text.size() < 3 || text[0] != '0' || (text[1] | 32) != lower) return;
    text.remove_prefix(text[2] == '_' ? 3 : 2);
    base = its_base;
  };
  prefix('x', 16), prefix('o', 8), prefix('b', 2);
  if (base == 0) base = 10;
  const std::optional<std::string> digits = WithoutUnderscores(text, base);
  if (!digits || digits->empty() || digits->size() > kMostDigits) return std::nullopt;
  for (const char c : *digits) {
    if (DigitValue(c) >= base) return std::nullopt;
  }
  return Value::Whole(sign + (base == 10 ? *digits : InBase(i.budget(), *digits, base, 10)));
}

// Reads a number as Python's float(text) does; nullopt: it is none.
std::optional<double> ReadFloat(std::string_view text) {
  const std::string sign = TakeSign(&text);
  const std::optional<std::string> number = WithoutUnderscores(text, 10);
  if (!number || number->empty() || (*number)[0] == '-') return std::nullopt;
  double d = 0;
  const auto read = std::from_chars(number->data(), number->data() + number->size(), d);
  if (read.ptr != number->data() + number->size()) return std::nullopt;
  if (read.ec != std::errc()) d = std::strtod(number->c_str(), nullptr);  // infinity, or 0
  return sign.empty() ? d : -d;
}

Value ToInt(Interpreter& i, const Value& v, const Value& fallback, int64_t base) {
  if (v.undefined()) FailUndefined(v);
  if (base != 0 && (base < 2 || base > 36)) Fail("int: base must be 0 or between 2 and 36, not {}", base);
  if (v.integral()) return Value::Int(v.AsInt());
  if (v.big() != nullptr) return v;
  std::optional<double> d;
  if (v.number()) {
    d = v.AsDouble();
  } else if (v.str() != nullptr) {
    const std::string text = Strip(i, *v.str(), nullptr, Side::kBoth);
    if (const std::optional<Value> n = ReadWhole(i, text, static_cast<int>(base))) return *n;
    d = ReadFloat(text);
  }
  return d && std::isfinite(*d) ? Value::Truncated(*d) : fallback;
}

Value ToFloat(Interpreter& i, const Value& v, const Value& fallback) {
  if (v.undefined()) FailUndefined(v);
  if (v.number()) return Value::Float(v.AsDouble());
  if (v.str() == nullptr) return fallback;
  const std::optional<double> d = ReadFloat(Strip(i, *v.str(), nullptr, Side::kBoth));
  return d ? Value::Float(*d) : fallback;
}

Value ApplyEscape(Interpreter& i, const Value& v, Arguments&) { return Escape(i, v); }

Value MarkSafe(Interpreter& i, const Value& v, Arguments&) {
  const TextOf text(i, v);
  i.budget().Charge((*text).size() + Budget::kObject);
  return Value::Safe(*text);
}
Value ToJson(Interpreter& i, const Value& v, Arguments& a) {
  JsonOptions o;
  o.ensure_ascii = TakeBool(a, 0, "ensure_ascii", false);
  if (const Value* indent = GivenSome(a, 1, "indent")) {
    if (indent->str() == nullptr && !indent->integral())
      Fail("tojson: indent is a {}, expected a string or an integer", indent->TypeName());
    o.indent = indent->str() != nullptr
                   ? *indent->str()
                   : std::string(static_cast<size_t>(std::clamp<int64_t>(indent->AsInt(), 0, 100)), ' ');
  }
  if (const Value* separators = GivenSome(a, 2, "separators")) {
    const List* two = separators->list();
    if (two == nullptr || two->items.size() != 2 || two->items[0].str() == nullptr || two->items[1].str() == nullptr)
      Fail("tojson: separators are two strings");
    o.separators = {*two->items[0].str(), *two->items[1].str()};
  }
  o.sort_keys = TakeBool(a, 3, "sort_keys", false);
  return Value::Str(DumpJson(v, o, i.budget()));
}

Value Indent(Interpreter& i, const Value& v, Arguments& a) {
  const Value width = Take(a, 0, "width", Value::Int(4));
  const std::string pad =
      width.str() != nullptr
          ? *width.str()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(TakeInt(a, 0, "width", 4), 0, 1000)), ' ');
  const bool first = TakeBool(a, 1, "first", false), blank = TakeBool(a, 2, "blank", false);
  const TextOf text_of(i, v);
  const std::string& text = text_of;
  std::string out;
  bool begins = true;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    i.budget().Charge(pad.size() + line.size() + 1);
    if (begins ? first : (blank || !line.empty())) out += pad;
    out += line;
    if (end < text.size()) out += '\n';
    begins = false;
    at = end + 1;
  }
  return Value::Str(std::move(out));
}

// Rounds to a multiple of 10^digits; halves to the even one, as Python does.
Value RoundWhole(int64_t n, int digits) {
  if (digits > 18) return Value::Int(0);
  int64_t unit = 1;
  for (int k = 0; k < digits; ++k) unit *= 10;
  int64_t down = n / unit, rest = n % unit;
  if (rest < 0) {
    rest += unit;
    --down;
  }
  if (rest > unit - rest || (rest == unit - rest && down % 2 != 0)) ++down;
  int64_t out = 0;
  FailOnOverflow(__builtin_mul_overflow(down, unit, &out));
  return Value::Int(out);
}

Value Round(Interpreter& i, const Value& v, Arguments& a) {
  if (v.undefined()) FailUndefined(v);
  if (!v.number()) Fail("round: a number is required, not {}", v.TypeName());
  const auto digits = static_cast<int>(std::clamp<int64_t>(TakeInt(a, 0, "precision", 0), -300, 300));
  const std::string method = TakeText(i, a, 1, "method", "common");
  if (method != "common" && method != "ceil" && method != "floor") Fail("method must be common, ceil or floor");
  if (method == "common" && v.whole()) {
    if (digits >= 0) return v.Is<bool>() ? Value::Int(v.AsInt()) : v;
    FailOnOverflow(v.big() != nullptr);
    return RoundWhole(v.AsInt(), -digits);
  }
  const double scale = std::pow(10.0, digits), x = v.AsDouble();
  if (method == "ceil") return Value::Float(std::ceil(x * scale) / scale);
  if (method == "floor") return Value::Float(std::floor(x * scale) / scale);
  if (digits < 0) return Value::Float(std::nearbyint(x * scale) / scale);
  return Value::Float(std::strtod(fmt::format("{:.{}f}", x, digits).c_str(), nullptr));  // correctly rounded
}

Value Default(Interpreter&, const Value& v, Arguments& a) {
  const bool any_false = TakeBool(a, 1, "boolean", false);
  return v.undefined() || (any_false && !v.Truthy()) ? Take(a, 0, "default_value", Value::Str("")) : v;
}

Value Truncate(Interpreter& i, const Value& v, Arguments& a) {
  const TextOf text(i, v);
  const std::string &s = text, end = TakeText(i, a, 2, "end", "...");
  const int64_t length = std::clamp<int64_t>(TakeInt(a, 0, "length", 255), 0, 1 << 30);
  const int64_t leeway = std::min<int64_t>(TakeInt(a, 3, "leeway", 5), 1 << 30);
  const auto ending = static_cast<int64_t>(CountCharacters(end));
  if (length < ending) Fail("truncate: length is {}, expected at least {}, as its end has", length, ending);
  if (leeway < 0) Fail("truncate: leeway is {}, expected 0 or more", leeway);
  if (static_cast<int64_t>(CountCharacters(s)) <= length + leeway) return v;
  std::string out = s.substr(0, CharacterOffset(s, length - ending));
  if (!TakeBool(a, 1, "killwords", false)) out = out.substr(0, std::min(out.rfind(' '), out.size()));
  return Text(i, out + end);
}

Value Center(Interpreter& i, const Value& v, Arguments& a) {
  const TextOf text(i, v);
  const std::string& s = text;
  const auto width = static_cast<size_t>(std::clamp<int64_t>(TakeInt(a, 0, "width", 80), 0, 100000));
  const size_t n = CountCharacters(s), pad = width > n ? width - n : 0;
  const size_t left = pad / 2 + (pad & width & 1);
  return Text(i, std::string(left, ' ') + s + std::string(pad - left, ' '));
}

Value Absolute(Interpreter&, const Value& v, Arguments&) {
  if (v.undefined()) FailUndefined(v);
  if (!v.number()) Fail("bad operand type for abs(): '{}'", v.TypeName());
  if (!v.whole()) return Value::Float(std::fabs(v.AsDouble()));
  const std::string digits = v.Decimal();
  return Value::Whole(digits[0] == '-' ? Negated(digits) : digits);
}

bool BeginsWord(char32_t c) { return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<'; }

// A filter that changes a text into another text.
template <std::string (*change)(const std::string&)>
Value Changed(Interpreter& i, const Value& v, Arguments&) {
  return Text(i, change(TextOf(i, v)));
}
std::string TitleOfWords(const std::string& s) { return Title(s, BeginsWord); }
Value Unchanged(Interpreter& i, const Value& v, Arguments&) {
  return v.str() != nullptr ? v : Value::Str(ToText(v, i.budget()));
}

struct FilterEntry {
  const char* arguments;  // Jinja's names, in the form that Check reads
  Filter filter;
};

const std::unordered_map<std::string, FilterEntry>& Filters() {
  static const auto* map = new std::unordered_map<std::string, FilterEntry>{
      {"tojson", {"ensure_ascii,indent,separators,sort_keys", ToJson}},
      {"length", {"", Length}},
      {"count", {"", Length}},
      {"trim",
       {"chars", [](Interpreter& i, const Value& v,
                    Arguments& a) { return Text(i, Strip(i, *TextOf(i, v), Given(a, 0, "chars"), Side::kBoth)); }}},
      {"string", {"", Unchanged}},
      {"safe", {"", MarkSafe}},
      {"upper", {"", Changed<Upper>}},
      {"lower", {"", Changed<Lower>}},
      {"capitalize", {"", Changed<Capitalize>}},
      {"title", {"", Changed<TitleOfWords>}},
      {"list",
       {"",
        [](Interpreter& i, const Value& v, Arguments&) {
          const Items items = i.Iterate(v);
          return i.NewList({items.begin(), items.end()});
        }}},
      {"int",
       {"default,base",
        [](Interpreter& i, const Value& v, Arguments& a) {
          return ToInt(i, v, Take(a, 0, "default", Value::Int(0)), TakeInt(a, 1, "base", 10));
        }}},
      {"float",
       {"default", [](Interpreter& i, const Value& v,
                      Arguments& a) { return ToFloat(i, v, Take(a, 0, "default", Value::Float(0))); }}},
      {"abs", {"", Absolute}},
      {"round", {"precision,method", Round}},
      {"sum", {"attribute,start", Sum}},
      {"min", {"case_sensitive,attribute", Min}},
      {"max", {"case_sensitive,attribute", Max}},
      {"first", {"", FirstItem}},
      {"last", {"", LastItem}},
      {"join", {"d,attribute", Join}},
      {"reverse", {"", Reverse}},
      {"sort", {"reverse,case_sensitive,attribute", Sort}},
      {"unique", {"case_sensitive,attribute", Unique}},
      {"map", {"*", Map}},
      {"select", {"*", Select}},
      {"reject", {"*", Reject}},
      {"selectattr", {"*", SelectAttr}},
      {"rejectattr", {"*", RejectAttr}},
      {"items", {"", DictItems}},
      {"dictsort", {"case_sensitive,by,reverse", DictSort}},
      {"groupby", {"attribute!,default,case_sensitive", GroupBy}},
      {"batch", {"linecount!,fill_with", Batch}},
      {"slice", {"slices!,fill_with", Slice}},
      {"default", {"default_value,boolean", Default}},
      {"d", {"default_value,boolean", Default}},
      {"replace",
       {"old!,new!,count",
        [](Interpreter& i, const Value& v, Arguments& a) {
          return Value::Str(Replace(i, TextOf(i, v), TakeText(i, a, 0, "old", ""), TakeText(i, a, 1, "new", ""),
                                    TakeInt(a, 2, "count", -1)));
        }}},
      {"indent", {"width,first,blank", Indent}},
      {"format",
       {"*", [](Interpreter& i, const Value& v,
                Arguments& a) { return Value::Str(Format(i, TextOf(i, v), a.positional)); }}},
      {"attr",
       {"name!",
        [](Interpreter& i, const Value& v, Arguments& a) {
          const std::string name = TakeText(i, a, 0, "name", "");
          // An item of a dict is no attribute of it.
          if (v.dict() == nullptr || v.dict()->is_namespace) return i.Attribute(v, name);
          const Value method = FindMethod(v, name);
          return method.undefined() ? Value::Missing(name) : method;
        }}},
      {"escape", {"", ApplyEscape}},
      {"e", {"", ApplyEscape}},
      {"wordcount",
       {"", [](Interpreter& i, const Value& v, Arguments&) { return Value::Int(CountWords(*TextOf(i, v))); }}},
      {"truncate", {"length,killwords,end,leeway", Truncate}},
      {"center", {"width", Center}},
  };
  return *map;
}

}  // namespace

Filter FindFilter(const std::string& name) {
  const auto it = Filters().find(name);
  return it == Filters().end() ? nullptr : it->second.filter;
}

Value Interpreter::ApplyFilter(const std::string& name, const Value& v, Arguments& arguments) {
  const auto it = Filters().find(name);
  if (it == Filters().end()) Fail("the filter '{}' is not known", name);
  Check("filter", name, arguments, it->second.arguments);
  return it->second.filter(*this, v, arguments);
}

}  // namespace gyre::jinja
