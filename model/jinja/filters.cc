// Filters by name, as Jinja has them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "model/jinja/builtins.h"
#include "model/jinja/list_filters.h"
#include "model/jinja/print.h"
#include "model/jinja/text.h"
#include "model/utf8.h"

namespace gyre::jinja {
namespace {

Value ToInt(Interpreter& i, const Value& v, const Value& fallback) {
  if (v.integral()) return Value::Int(v.AsInt());
  double d = 0;
  if (v.number()) {
    d = v.AsDouble();
  } else if (v.str() != nullptr) {
    const std::string text = Strip(i, *v.str(), nullptr, Side::kBoth);
    const char* begin = text.data() + (text.empty() || text[0] != '+' ? 0 : 1);
    const char* end = text.data() + text.size();
    int64_t n = 0;
    const auto whole = std::from_chars(begin, end, n);
    if (whole.ec == std::errc() && whole.ptr == end) return Value::Int(n);
    const auto real = std::from_chars(begin, end, d);
    if (real.ec != std::errc() || real.ptr != end) return fallback;
  } else {
    return fallback;
  }
  if (!std::isfinite(d) || std::fabs(d) > 9e18) return fallback;
  return Value::Int(static_cast<int64_t>(d));
}

Value ToFloat(Interpreter& i, const Value& v, const Value& fallback) {
  if (v.number()) return Value::Float(v.AsDouble());
  if (v.str() == nullptr) return fallback;
  const std::string text = Strip(i, *v.str(), nullptr, Side::kBoth);
  double d = 0;
  const char* begin = text.data() + (text.empty() || text[0] != '+' ? 0 : 1);
  const auto r = std::from_chars(begin, text.data() + text.size(), d);
  return r.ec == std::errc() && r.ptr == text.data() + text.size() ? Value::Float(d) : fallback;
}

std::string_view EscapeOf(char c) {
  switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&#34;";
    case '\'': return "&#39;";
    default: return "";
  }
}

Value Escape(Interpreter& i, const Value& v, Arguments&) {
  const TextOf text(i, v);
  std::string out;
  for (const char c : *text) {
    const std::string_view escape = EscapeOf(c);
    i.budget().Charge(std::max<size_t>(1, escape.size()));
    if (escape.empty()) {
      out += c;
    } else {
      out += escape;
    }
  }
  return Value::Str(std::move(out));
}

Value ToJson(Interpreter& i, const Value& v, Arguments& a) {
  JsonOptions o;
  o.ensure_ascii = TakeBool(a, 0, "ensure_ascii", false);
  const Value* indent = Given(a, 1, "indent");
  if (indent != nullptr && indent->integral())
    o.indent = static_cast<int>(std::clamp<int64_t>(indent->AsInt(), 0, 100));
  if (const Value* separators = Given(a, 2, "separators");
      separators != nullptr && separators->list() != nullptr && separators->list()->items.size() == 2) {
    o.item_separator = ToText(separators->list()->items[0], i.budget());
    o.key_separator = ToText(separators->list()->items[1], i.budget());
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

Value Round(Interpreter& i, const Value& v, Arguments& a) {
  if (!v.number()) Fail("round: a number is required, not {}", v.TypeName());
  const auto digits = static_cast<int>(std::clamp<int64_t>(TakeInt(a, 0, "precision", 0), -300, 300));
  const std::string method = TakeText(i, a, 1, "method", "common");
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
  const int64_t leeway = std::clamp<int64_t>(TakeInt(a, 3, "leeway", 5), 0, 1 << 30);
  if (static_cast<int64_t>(CountCharacters(s)) <= length + leeway) return v;
  const int64_t kept = std::max<int64_t>(0, length - static_cast<int64_t>(CountCharacters(end)));
  std::string out = s.substr(0, CharacterOffset(s, kept));
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
  if (!v.number()) Fail("bad operand type for abs(): '{}'", v.TypeName());
  if (!v.integral()) return Value::Float(std::fabs(v.AsDouble()));
  return Value::Int(v.AsInt() < 0 && v.AsInt() != INT64_MIN ? -v.AsInt() : v.AsInt());
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

const std::unordered_map<std::string, Filter>& Filters() {
  static const auto* map = new std::unordered_map<std::string, Filter>{
      {"tojson", ToJson},
      {"length", Length},
      {"count", Length},
      {"trim", [](Interpreter& i, const Value& v,
                  Arguments& a) { return Text(i, Strip(i, *TextOf(i, v), Given(a, 0, "chars"), Side::kBoth)); }},
      {"string", Unchanged},
      {"safe", Unchanged},
      {"upper", Changed<Upper>},
      {"lower", Changed<Lower>},
      {"capitalize", Changed<Capitalize>},
      {"title", Changed<TitleOfWords>},
      {"list",
       [](Interpreter& i, const Value& v, Arguments&) {
         const Items items = i.Iterate(v);
         return i.NewList({items.begin(), items.end()});
       }},
      {"int",
       [](Interpreter& i, const Value& v, Arguments& a) { return ToInt(i, v, Take(a, 0, "default", Value::Int(0))); }},
      {"float", [](Interpreter& i, const Value& v,
                   Arguments& a) { return ToFloat(i, v, Take(a, 0, "default", Value::Float(0))); }},
      {"abs", Absolute},
      {"round", Round},
      {"sum", Sum},
      {"min", Min},
      {"max", Max},
      {"first", FirstItem},
      {"last", LastItem},
      {"join", Join},
      {"reverse", Reverse},
      {"sort", Sort},
      {"unique", Unique},
      {"map", Map},
      {"select", Select},
      {"reject", Reject},
      {"selectattr", SelectAttr},
      {"rejectattr", RejectAttr},
      {"items", DictItems},
      {"dictsort", DictSort},
      {"groupby", GroupBy},
      {"batch", Batch},
      {"slice", Slice},
      {"default", Default},
      {"d", Default},
      {"replace",
       [](Interpreter& i, const Value& v, Arguments& a) {
         return Value::Str(Replace(i, TextOf(i, v), TakeText(i, a, 0, "old", ""), TakeText(i, a, 1, "new", ""),
                                   TakeInt(a, 2, "count", -1)));
       }},
      {"indent", Indent},
      {"format",
       [](Interpreter& i, const Value& v, Arguments& a) { return Value::Str(Format(i, TextOf(i, v), a.positional)); }},
      {"attr",
       [](Interpreter& i, const Value& v, Arguments& a) { return i.Attribute(v, TakeText(i, a, 0, "name", "")); }},
      {"escape", Escape},
      {"e", Escape},
      {"wordcount",
       [](Interpreter& i, const Value& v, Arguments&) {
         return Value::Int(static_cast<int64_t>(SplitText(i, TextOf(i, v), nullptr, -1, false).list()->items.size()));
       }},
      {"truncate", Truncate},
      {"center", Center},
  };
  return *map;
}

}  // namespace

Filter FindFilter(const std::string& name) {
  const auto it = Filters().find(name);
  return it == Filters().end() ? nullptr : it->second;
}

}  // namespace gyre::jinja
