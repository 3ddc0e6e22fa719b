// Filters by name, as Jinja has them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "model/jinja/builtins.h"
#include "model/jinja/text.h"
#include "model/utf8.h"

namespace gyre::jinja {
namespace {

// printf-style: %s %r %d %i %f %x %%, with width and precision.
std::string Format(Interpreter& i, const std::string& format, const std::vector<Value>& values) {
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    const size_t begin = ++at;
    while (at < format.size() && std::string_view("-+ 0#123456789.").find(format[at]) != std::string_view::npos) ++at;
    if (at >= format.size()) Fail("incomplete format");
    const char kind = format[at];
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (at - begin > 6) Fail("the format %{} is too wide", format.substr(begin, at - begin));
    if (used >= values.size()) Fail("not enough arguments for format string");
    const Value& v = values[used++];
    const std::string spec = "%" + format.substr(begin, at - begin);
    char buffer[1024] = {};
    if (kind == 's' || kind == 'r') {
      const std::string text = kind == 's' ? v.ToString() : v.Repr();
      const size_t width = static_cast<size_t>(std::abs(std::atoi(spec.c_str() + 1)));
      const size_t length = CountCharacters(text);
      const std::string pad(width > length ? width - length : 0, ' ');
      i.Charge(text.size() + pad.size());
      out += spec.find('-') != std::string::npos ? text + pad : pad + text;
      continue;
    }
    if (!v.number()) Fail("%{} format: a number is required, not {}", kind, v.TypeName());
    if (kind == 'd' || kind == 'i' || kind == 'x' || kind == 'X' || kind == 'o') {
      const auto n = static_cast<long long>(v.integral() ? v.AsInt()
                                                         : static_cast<int64_t>(std::clamp(v.AsDouble(), -9e18, 9e18)));
      std::snprintf(buffer, sizeof buffer, (spec + "ll" + kind).c_str(), n);
    } else if (kind == 'f' || kind == 'F' || kind == 'e' || kind == 'E' || kind == 'g' || kind == 'G') {
      std::snprintf(buffer, sizeof buffer, (spec + kind).c_str(), v.AsDouble());
    } else {
      Fail("unsupported format character '{}'", kind);
    }
    out += buffer;
  }
  if (used < values.size()) Fail("not all arguments converted during string formatting");
  return out;
}

// Jinja's attribute of an item: "a.b.0".
Value Path(Interpreter& i, Value v, const Value& path) {
  if (path.integral()) return i.Item(v, path);
  const std::string text = path.ToString();
  for (size_t at = 0; at <= text.size();) {
    const size_t dot = std::min(text.find('.', at), text.size());
    const std::string part = text.substr(at, dot - at);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    v = number && part.size() < 10 ? i.Item(v, Value::Int(std::stoll(part))) : i.Item(v, Value::Str(part));
    at = dot + 1;
  }
  return v;
}

Arguments Rest(const Arguments& a, size_t from) {
  Arguments out;
  for (size_t k = from; k < a.positional.size(); ++k) out.positional.push_back(a.positional[k]);
  out.named = a.named;
  return out;
}

// select, reject, selectattr, rejectattr.
Value Choose(Interpreter& i, const Value& v, const Arguments& a, bool attribute, bool want) {
  std::vector<Value> out;
  const size_t first = attribute ? 1 : 0;
  if (attribute && a.positional.empty()) Fail("an attribute's name is missing");
  for (const Value& item : i.Iterate(v)) {
    const Value what = attribute ? Path(i, item, a.positional[0]) : item;
    bool holds = false;
    if (a.positional.size() > first) {
      Arguments rest = Rest(a, first + 1);
      holds = i.ApplyTest(a.positional[first].ToString(), what, rest);
    } else {
      holds = what.Truthy();
    }
    if (holds == want) out.push_back(item);
  }
  return Value::OfList(std::move(out));
}

Value Fold(const Value& v) { return v.str() != nullptr ? Value::Str(Lower(*v.str())) : v; }

std::vector<Value> Sorted(Interpreter& i, std::vector<Value> items, const Arguments& a, const Value& by) {
  const bool reverse = TakeBool(a, 0, "reverse", false), exact = TakeBool(a, 1, "case_sensitive", false);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    Value key = by.undefined() || by.none() ? item : Path(i, item, by);
    keyed.emplace_back(exact ? std::move(key) : Fold(key), std::move(item));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    i.Charge(1);
    return reverse ? Less(y.first, x.first) : Less(x.first, y.first);
  });
  std::vector<Value> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value Extreme(Interpreter& i, const Value& v, const Arguments& a, bool largest) {
  const Value by = Take(a, 1, "attribute");
  const bool exact = TakeBool(a, 0, "case_sensitive", false);
  Value best;
  Value best_key;
  bool any = false;
  for (const Value& item : i.Iterate(v)) {
    Value key = by.undefined() ? item : Path(i, item, by);
    if (!exact) key = Fold(key);
    if (any && !(largest ? Less(best_key, key) : Less(key, best_key))) continue;
    any = true;
    best = item;
    best_key = key;
  }
  return best;
}

Value Length(Interpreter&, const Value& v, Arguments&) {
  if (v.str() != nullptr) return Value::Int(static_cast<int64_t>(CountCharacters(*v.str())));
  if (v.list() != nullptr) return Value::Int(static_cast<int64_t>(v.list()->items.size()));
  if (v.dict() != nullptr) return Value::Int(static_cast<int64_t>(v.dict()->items().size()));
  if (v.undefined()) return Value::Int(0);
  Fail("object of type '{}' has no len()", v.TypeName());
}

Value ItemsOf(const Value& v) {
  std::vector<Value> out;
  if (v.undefined()) return Value::OfList({});
  if (v.dict() == nullptr) Fail("Can only get item pairs from a mapping.");
  for (const auto& [key, value] : v.dict()->items()) out.push_back(Value::OfList({key, value}, true));
  return Value::OfList(std::move(out));
}

Value ToInt(const Value& v, const Value& fallback) {
  if (v.integral()) return Value::Int(v.AsInt());
  double d = 0;
  if (v.number()) {
    d = v.AsDouble();
  } else if (v.str() != nullptr) {
    const std::string text = Strip(*v.str(), nullptr, Side::kBoth);
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

Value ToFloat(const Value& v, const Value& fallback) {
  if (v.number()) return Value::Float(v.AsDouble());
  if (v.str() == nullptr) return fallback;
  const std::string text = Strip(*v.str(), nullptr, Side::kBoth);
  double d = 0;
  const char* begin = text.data() + (text.empty() || text[0] != '+' ? 0 : 1);
  const auto r = std::from_chars(begin, text.data() + text.size(), d);
  return r.ec == std::errc() && r.ptr == text.data() + text.size() ? Value::Float(d) : fallback;
}

std::string Escape(const std::string& s) {
  std::string out;
  for (char c : s) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

Value ToJson(Interpreter& i, const Value& v, Arguments& a) {
  JsonOptions o;
  o.ensure_ascii = TakeBool(a, 0, "ensure_ascii", false);
  const Value* indent = Given(a, 1, "indent");
  if (indent != nullptr && indent->integral())
    o.indent = static_cast<int>(std::clamp<int64_t>(indent->AsInt(), 0, 100));
  if (const Value* separators = Given(a, 2, "separators");
      separators != nullptr && separators->list() != nullptr && separators->list()->items.size() == 2) {
    o.item_separator = separators->list()->items[0].ToString();
    o.key_separator = separators->list()->items[1].ToString();
  }
  o.sort_keys = TakeBool(a, 3, "sort_keys", false);
  return Text(i, DumpJson(v, o));
}

Value Indent(Interpreter& i, const Value& v, Arguments& a) {
  const Value width = Take(a, 0, "width", Value::Int(4));
  const std::string pad =
      width.str() != nullptr
          ? *width.str()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(TakeInt(a, 0, "width", 4), 0, 1000)), ' ');
  const bool first = TakeBool(a, 1, "first", false), blank = TakeBool(a, 2, "blank", false);
  const std::string text = v.ToString();
  std::string out;
  bool begins = true;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (begins ? first : (blank || !line.empty())) out += pad;
    i.Charge(pad.size() + line.size());
    out += line;
    if (end < text.size()) out += '\n';
    begins = false;
    at = end + 1;
  }
  return Value::Str(std::move(out));
}

Value Round(const Value& v, const Arguments& a) {
  if (!v.number()) Fail("round: a number is required, not {}", v.TypeName());
  const auto digits = static_cast<int>(std::clamp<int64_t>(TakeInt(a, 0, "precision", 0), -300, 300));
  const std::string method = TakeText(a, 1, "method", "common");
  const double scale = std::pow(10.0, digits), x = v.AsDouble();
  if (method == "ceil") return Value::Float(std::ceil(x * scale) / scale);
  if (method == "floor") return Value::Float(std::floor(x * scale) / scale);
  if (digits < 0) return Value::Float(std::nearbyint(x * scale) / scale);
  return Value::Float(std::strtod(fmt::format("{:.{}f}", x, digits).c_str(), nullptr));  // correctly rounded
}

Value Unique(Interpreter& i, const Value& v, Arguments& a) {
  const bool exact = TakeBool(a, 0, "case_sensitive", false);
  const Value by = Take(a, 1, "attribute");
  Dict seen;
  std::vector<Value> out;
  for (const Value& item : i.Iterate(v)) {
    Value key = by.undefined() ? item : Path(i, item, by);
    if (!exact) key = Fold(key);
    if (seen.Find(key) != nullptr) continue;
    seen.Set(key, Value());
    out.push_back(item);
  }
  return Value::OfList(std::move(out));
}

Value Map(Interpreter& i, const Value& v, Arguments& a) {
  std::vector<Value> out;
  const Value* attribute = Given(a, SIZE_MAX, "attribute");
  if (attribute == nullptr && a.positional.empty()) Fail("map requires a filter argument");
  for (const Value& item : i.Iterate(v)) {
    if (attribute != nullptr) {
      Value found = Path(i, item, *attribute);
      const Value* fallback = Given(a, SIZE_MAX, "default");
      out.push_back(found.undefined() && fallback != nullptr ? *fallback : found);
    } else {
      Arguments rest = Rest(a, 1);
      out.push_back(i.ApplyFilter(a.positional[0].ToString(), item, rest));
    }
  }
  return Value::OfList(std::move(out));
}

Value Slices(Interpreter& i, const Value& v, Arguments& a, bool batch) {
  const int64_t n = TakeInt(a, 0, batch ? "linecount" : "slices", 0);
  if (n < 1) Fail("{} needs a positive number", batch ? "batch" : "slice");
  const Value* fill = Given(a, 1, "fill_with");
  const std::vector<Value> items = i.Iterate(v);
  std::vector<Value> out;
  const auto u = static_cast<size_t>(n);
  if (batch) {
    for (size_t at = 0; at < items.size(); at += u) {
      std::vector<Value> part(items.begin() + static_cast<std::ptrdiff_t>(at),
                              items.begin() + static_cast<std::ptrdiff_t>(std::min(at + u, items.size())));
      if (fill != nullptr && u <= 10000) part.resize(u, *fill);
      out.push_back(Value::OfList(std::move(part)));
    }
    return Value::OfList(std::move(out));
  }
  i.Charge(u > (size_t{1} << 40) ? SIZE_MAX : u * sizeof(Value));
  size_t at = 0;
  for (size_t s = 0; s < u; ++s) {
    const size_t count = items.size() / u + (s < items.size() % u ? 1 : 0);
    std::vector<Value> part(items.begin() + static_cast<std::ptrdiff_t>(at),
                            items.begin() + static_cast<std::ptrdiff_t>(at + count));
    at += count;
    if (fill != nullptr && items.size() % u != 0 && s >= items.size() % u) part.push_back(*fill);
    out.push_back(Value::OfList(std::move(part)));
  }
  return Value::OfList(std::move(out));
}

Value GroupBy(Interpreter& i, const Value& v, Arguments& a) {
  const Value by = Take(a, 0, "attribute");
  Arguments none;
  std::vector<Value> out, group;
  Value last;
  bool any = false;
  auto close = [&] {
    if (!any) return;
    auto pair = std::make_shared<Dict>();
    pair->Set(Value::Int(0), last);
    pair->Set(Value::Int(1), Value::OfList(group));
    pair->Set(Value::Str("grouper"), last);
    pair->Set(Value::Str("list"), Value::OfList(group));
    out.push_back(Value::OfList({last, Value::OfList(std::move(group))}, true));
    group.clear();
  };
  for (const Value& item : Sorted(i, i.Iterate(v), none, by)) {
    const Value key = Path(i, item, by);
    if (any && !Equal(Fold(key), Fold(last))) close();
    if (!any || group.empty()) last = key;
    any = true;
    group.push_back(item);
  }
  close();
  return Value::OfList(std::move(out));
}

Value DictSort(Interpreter& i, const Value& v, Arguments& a) {
  const bool by_value = TakeText(a, 1, "by", "key") == "value";
  Arguments order;
  order.positional = {Value::Bool(TakeBool(a, 2, "reverse", false)),
                      Value::Bool(TakeBool(a, 0, "case_sensitive", false))};
  return Value::OfList(Sorted(i, ItemsOf(v).list()->items, order, Value::Int(by_value ? 1 : 0)));
}

Value Sum(Interpreter& i, const Value& v, Arguments& a) {
  const Value by = Take(a, 0, "attribute");
  Value sum = Take(a, 1, "start", Value::Int(0));
  for (const Value& item : i.Iterate(v)) sum = i.Binary("+", sum, by.undefined() ? item : Path(i, item, by));
  return sum;
}

Value Reverse(Interpreter& i, const Value& v, Arguments&) {
  if (const std::string* s = v.str()) {
    const auto at = CharacterOffsets(*s);
    std::string out;
    for (size_t c = at.size() - 1; c > 0; --c) out.append(*s, at[c - 1], at[c] - at[c - 1]);
    return Text(i, std::move(out));
  }
  std::vector<Value> items = i.Iterate(v);
  std::reverse(items.begin(), items.end());
  return Value::OfList(std::move(items));
}

Value Default(const Value& v, const Arguments& a) {
  const bool any_false = TakeBool(a, 1, "boolean", false);
  return v.undefined() || (any_false && !v.Truthy()) ? Take(a, 0, "default_value", Value::Str("")) : v;
}

Value Truncate(Interpreter& i, const Value& v, Arguments& a) {
  const std::string s = v.ToString(), end = TakeText(a, 2, "end", "...");
  const auto length = static_cast<size_t>(std::clamp<int64_t>(TakeInt(a, 0, "length", 255), 0, 1 << 30));
  const auto leeway = static_cast<size_t>(std::clamp<int64_t>(TakeInt(a, 3, "leeway", 5), 0, 1 << 30));
  const auto at = CharacterOffsets(s);
  if (at.size() - 1 <= length + leeway) return v;
  std::string out = s.substr(0, at[length - std::min(length, CountCharacters(end))]);
  if (!TakeBool(a, 1, "killwords", false)) out = out.substr(0, std::min(out.rfind(' '), out.size()));
  return Text(i, out + end);
}

Value Center(Interpreter& i, const Value& v, Arguments& a) {
  const std::string s = v.ToString();
  const auto width = static_cast<size_t>(std::clamp<int64_t>(TakeInt(a, 0, "width", 80), 0, 100000));
  const size_t n = CountCharacters(s), pad = width > n ? width - n : 0;
  const size_t left = pad / 2 + (pad & width & 1);
  return Text(i, std::string(left, ' ') + s + std::string(pad - left, ' '));
}

const std::unordered_map<std::string, Filter>& Filters() {
  static const auto* map = new std::unordered_map<std::string, Filter>{
      {"tojson", ToJson},
      {"length", Length},
      {"count", Length},
      {"trim", [](Interpreter& i, const Value& v, Arguments& a) { return Text(i, Strip(v.ToString(), Given(a, 0, "chars"), Side::kBoth)); }},
      {"string", [](Interpreter& i, const Value& v, Arguments&) { return Text(i, v.ToString()); }},
      {"upper", [](Interpreter& i, const Value& v, Arguments&) { return Text(i, Upper(v.ToString())); }},
      {"lower", [](Interpreter& i, const Value& v, Arguments&) { return Text(i, Lower(v.ToString())); }},
      {"capitalize", [](Interpreter& i, const Value& v, Arguments&) { return Text(i, Capitalize(v.ToString())); }},
      {"title", [](Interpreter& i, const Value& v, Arguments&) {
         return Text(i, Title(v.ToString(), [](char32_t c) {
                       return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
                     }));
       }},
      {"list", [](Interpreter& i, const Value& v, Arguments&) { return Value::OfList(i.Iterate(v)); }},
      {"int", [](Interpreter&, const Value& v, Arguments& a) { return ToInt(v, Take(a, 0, "default", Value::Int(0))); }},
      {"float", [](Interpreter&, const Value& v, Arguments& a) { return ToFloat(v, Take(a, 0, "default", Value::Float(0))); }},
      {"abs", [](Interpreter&, const Value& v, Arguments&) {
         if (!v.number()) Fail("bad operand type for abs(): '{}'", v.TypeName());
         return v.integral() ? Value::Int(v.AsInt() < 0 && v.AsInt() != INT64_MIN ? -v.AsInt() : v.AsInt()) : Value::Float(std::fabs(v.AsDouble()));
       }},
      {"round", [](Interpreter&, const Value& v, Arguments& a) { return Round(v, a); }},
      {"sum", Sum},
      {"min", [](Interpreter& i, const Value& v, Arguments& a) { return Extreme(i, v, a, false); }},
      {"max", [](Interpreter& i, const Value& v, Arguments& a) { return Extreme(i, v, a, true); }},
      {"first", [](Interpreter& i, const Value& v, Arguments&) {
         const auto items = i.Iterate(v);
         return items.empty() ? Value() : items.front();
       }},
      {"last", [](Interpreter& i, const Value& v, Arguments&) {
         const auto items = i.Iterate(v);
         return items.empty() ? Value() : items.back();
       }},
      {"join", Join},
      {"reverse", Reverse},
      {"sort", [](Interpreter& i, const Value& v, Arguments& a) { return Value::OfList(Sorted(i, i.Iterate(v), a, Take(a, 2, "attribute"))); }},
      {"unique", Unique},
      {"map", Map},
      {"select", [](Interpreter& i, const Value& v, Arguments& a) { return Choose(i, v, a, false, true); }},
      {"reject", [](Interpreter& i, const Value& v, Arguments& a) { return Choose(i, v, a, false, false); }},
      {"selectattr", [](Interpreter& i, const Value& v, Arguments& a) { return Choose(i, v, a, true, true); }},
      {"rejectattr", [](Interpreter& i, const Value& v, Arguments& a) { return Choose(i, v, a, true, false); }},
      {"items", [](Interpreter&, const Value& v, Arguments&) { return ItemsOf(v); }},
      {"dictsort", DictSort},
      {"groupby", GroupBy},
      {"batch", [](Interpreter& i, const Value& v, Arguments& a) { return Slices(i, v, a, true); }},
      {"slice", [](Interpreter& i, const Value& v, Arguments& a) { return Slices(i, v, a, false); }},
      {"default", [](Interpreter&, const Value& v, Arguments& a) { return Default(v, a); }},
      {"d", [](Interpreter&, const Value& v, Arguments& a) { return Default(v, a); }},
      {"replace", [](Interpreter& i, const Value& v, Arguments& a) {
         return Text(i, Replace(i, v.ToString(), TakeText(a, 0, "old", ""), TakeText(a, 1, "new", ""), TakeInt(a, 2, "count", -1)));
       }},
      {"indent", Indent},
      {"format", [](Interpreter& i, const Value& v, Arguments& a) { return Text(i, Format(i, v.ToString(), a.positional)); }},
      {"attr", [](Interpreter& i, const Value& v, Arguments& a) { return i.Attribute(v, TakeText(a, 0, "name", "")); }},
      {"escape", [](Interpreter& i, const Value& v, Arguments&) { return Text(i, Escape(v.ToString())); }},
      {"e", [](Interpreter& i, const Value& v, Arguments&) { return Text(i, Escape(v.ToString())); }},
      {"safe", [](Interpreter& i, const Value& v, Arguments&) { return Text(i, v.ToString()); }},
      {"wordcount", [](Interpreter& i, const Value& v, Arguments&) {
         return Value::Int(static_cast<int64_t>(SplitText(i, v.ToString(), nullptr, -1, false).list()->items.size()));
       }},
      {"truncate", Truncate},
      {"center", Center},
  };
  return *map;
}

}  // namespace

Value Join(Interpreter& i, const Value& v, Arguments& a) {
  const std::string by = TakeText(a, 0, "d", "");
  const Value attribute = Take(a, 1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& item : i.Iterate(v)) {
    const std::string text = (attribute.undefined() ? item : Path(i, item, attribute)).ToString();
    i.Charge(text.size() + by.size());
    if (!first) out += by;
    first = false;
    out += text;
  }
  return Value::Str(std::move(out));
}

Filter FindFilter(const std::string& name) {
  const auto it = Filters().find(name);
  return it == Filters().end() ? nullptr : it->second;
}

}  // namespace gyre::jinja
