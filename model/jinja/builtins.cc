#include "model/jinja/builtins.h"

#include <utf8proc.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "model/utf8.h"

namespace gyre::jinja {
namespace {

// ---- arguments

const Value* Given(const Arguments& a, size_t place, const char* name) {
  if (place < a.positional.size()) return &a.positional[place];
  for (const auto& [n, v] : a.named) {
    if (n == name) return &v;
  }
  return nullptr;
}
int64_t TakeInt(const Arguments& a, size_t place, const char* name, int64_t fallback) {
  const Value* v = Given(a, place, name);
  if (v == nullptr || v->none()) return fallback;
  if (!v->integral()) Fail("the argument {} is a {}, expected an integer", name, v->TypeName());
  return v->AsInt();
}
bool TakeBool(const Arguments& a, size_t place, const char* name, bool fallback) {
  const Value* v = Given(a, place, name);
  return v == nullptr ? fallback : v->Truthy();
}
std::string TakeText(const Arguments& a, size_t place, const char* name, const std::string& fallback) {
  const Value* v = Given(a, place, name);
  return v == nullptr || v->none() ? fallback : v->ToString();
}

Value Text(Interpreter& i, std::string s) {
  i.Charge(s.size());
  return Value::Str(std::move(s));
}

// ---- text

std::string MapCharacters(const std::string& s, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  std::string out;
  for (size_t at = 0; at < s.size();) {
    const size_t n = ValidUtf8Length(s, at);
    if (n == 0) {
      out += s[at++];
      continue;
    }
    const char32_t c = Utf8Decode(s, at, n);
    if (map == utf8proc_toupper && c == 0xDF) {
      out += "SS";
    } else {
      AppendUtf8(static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(c))), &out);
    }
    at += n;
  }
  return out;
}
std::string Upper(const std::string& s) {
  return MapCharacters(s, utf8proc_toupper);
}
std::string Lower(const std::string& s) {
  return MapCharacters(s, utf8proc_tolower);
}
std::string Capitalize(const std::string& s) {
  const size_t first = s.empty() ? 0 : Utf8Length(s, 0);
  return Upper(s.substr(0, first)) + Lower(s.substr(first));
}
bool Letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool Digit(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND;
}
// Each run of letters begins with a capital. `after`: does a word begin behind c?
std::string Title(const std::string& s, bool (*after)(char32_t)) {
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < s.size();) {
    const size_t n = Utf8Length(s, at);
    const std::string c = s.substr(at, n);
    out += begins ? Upper(c) : Lower(c);
    begins = after(ValidUtf8Length(s, at) == 0 ? 0xFFFD : Utf8Decode(s, at, n));
    at += n;
  }
  return out;
}

enum class Side { kLeft = 1, kRight = 2, kBoth = 3 };
std::string Strip(const std::string& s, const Value* chars, Side side) {
  const auto at = CharacterOffsets(s);
  auto goes = [&](size_t i) {
    const std::string_view c = std::string_view(s).substr(at[i], at[i + 1] - at[i]);
    if (chars == nullptr || chars->none() || chars->undefined()) {
      return ValidUtf8Length(s, at[i]) > 0 && IsSpace(Utf8Decode(s, at[i], c.size()));
    }
    return chars->ToString().find(c) != std::string::npos;
  };
  size_t begin = 0, end = at.size() - 1;
  while ((static_cast<int>(side) & 1) != 0 && begin < end && goes(begin)) ++begin;
  while ((static_cast<int>(side) & 2) != 0 && end > begin && goes(end - 1)) --end;
  return s.substr(at[begin], at[end] - at[begin]);
}

std::string Replace(Interpreter& i, const std::string& s, const std::string& from, const std::string& to,
                    int64_t count) {
  std::string out;
  size_t at = 0;
  if (from.empty()) {  // between all characters, as Python does
    for (size_t p : CharacterOffsets(s)) {
      if (count-- == 0) break;
      i.Charge(to.size());
      out += s.substr(at, p - at) + to;
      at = p;
    }
    return out + s.substr(at);
  }
  for (; count != 0; --count) {
    const size_t next = s.find(from, at);
    if (next == std::string::npos) break;
    i.Charge(to.size());
    out.append(s, at, next - at);
    out += to;
    at = next + from.size();
  }
  return out + s.substr(at);
}

Value SplitText(Interpreter& i, const std::string& s, const Value* separator, int64_t most, bool from_right) {
  std::vector<std::string> parts;
  if (separator == nullptr || separator->none()) {
    const auto at = CharacterOffsets(s);
    auto space = [&](size_t c) {
      return ValidUtf8Length(s, at[c]) > 0 && IsSpace(Utf8Decode(s, at[c], at[c + 1] - at[c]));
    };
    const size_t n = at.size() - 1;
    if (!from_right) {
      for (size_t c = 0;;) {
        while (c < n && space(c)) ++c;
        if (c == n) break;
        if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
          parts.push_back(Strip(s.substr(at[c]), nullptr, Side::kRight));
          break;
        }
        const size_t begin = c;
        while (c < n && !space(c)) ++c;
        parts.push_back(s.substr(at[begin], at[c] - at[begin]));
      }
    } else {
      for (size_t c = n;;) {
        while (c > 0 && space(c - 1)) --c;
        if (c == 0) break;
        if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
          parts.push_back(Strip(s.substr(0, at[c]), nullptr, Side::kLeft));
          break;
        }
        const size_t end = c;
        while (c > 0 && !space(c - 1)) --c;
        parts.push_back(s.substr(at[c], at[end] - at[c]));
      }
      std::reverse(parts.begin(), parts.end());
    }
  } else {
    const std::string by = separator->ToString();
    if (by.empty()) Fail("empty separator");
    if (!from_right) {
      size_t at = 0;
      for (;;) {
        const size_t next =
            most >= 0 && static_cast<int64_t>(parts.size()) == most ? std::string::npos : s.find(by, at);
        parts.push_back(s.substr(at, next == std::string::npos ? next : next - at));
        if (next == std::string::npos) break;
        at = next + by.size();
      }
    } else {
      size_t end = s.size();
      for (;;) {
        const bool enough = most >= 0 && static_cast<int64_t>(parts.size()) == most;
        const size_t next = enough || end < by.size() ? std::string::npos : s.rfind(by, end - by.size());
        if (next == std::string::npos) {
          parts.push_back(s.substr(0, end));
          break;
        }
        parts.push_back(s.substr(next + by.size(), end - next - by.size()));
        end = next;
      }
      std::reverse(parts.begin(), parts.end());
    }
  }
  i.Charge(s.size() + parts.size() * sizeof(Value));
  std::vector<Value> items;
  for (std::string& p : parts) items.push_back(Value::Str(std::move(p)));
  return Value::OfList(std::move(items));
}

std::vector<std::string> Lines(const std::string& s, bool keep_ends) {
  std::vector<std::string> out;
  for (size_t at = 0; at < s.size();) {
    size_t end = at;
    while (end < s.size() && s[end] != '\n' && s[end] != '\r') ++end;
    size_t next = end;
    if (next < s.size()) next += s[next] == '\r' && next + 1 < s.size() && s[next + 1] == '\n' ? 2 : 1;
    out.push_back(s.substr(at, (keep_ends ? next : end) - at));
    at = next;
  }
  return out;
}

// ---- printf-style formatting: %s %r %d %i %f %x %%, with width and precision

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

// ---- lists

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

Value Fold(const Value& v) {
  return v.str() != nullptr ? Value::Str(Lower(*v.str())) : v;
}

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
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
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

bool Sequence(const Value& v) {
  return v.str() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.undefined();
}
Value Other(const Arguments& a) {
  if (a.positional.empty()) Fail("the test needs a value to compare with");
  return a.positional[0];
}
bool IsEqual(Interpreter&, const Value& v, Arguments& a) {
  return Equal(v, Other(a));
}
bool NotEqual(Interpreter&, const Value& v, Arguments& a) {
  return !Equal(v, Other(a));
}
bool IsLess(Interpreter&, const Value& v, Arguments& a) {
  return Less(v, Other(a));
}
bool IsGreater(Interpreter&, const Value& v, Arguments& a) {
  return Less(Other(a), v);
}
bool AtMost(Interpreter&, const Value& v, Arguments& a) {
  return !Less(Other(a), v);
}
bool AtLeast(Interpreter&, const Value& v, Arguments& a) {
  return !Less(v, Other(a));
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
      {"sameas", [](Interpreter&, const Value& v,
                    Arguments& a) { return v.data().index() == Other(a).data().index() && Equal(v, Other(a)); }},
      {"in",
       [](Interpreter& i, const Value& v, Arguments& a) {
         const Value in = Other(a);
         if (in.str() != nullptr) return in.str()->find(v.ToString()) != std::string::npos;
         for (const Value& item : i.Iterate(in)) {
           if (Equal(item, v)) return true;
         }
         return false;
       }},
      {"odd", [](Interpreter&, const Value& v, Arguments&) { return Whole(v) % 2 != 0; }},
      {"even", [](Interpreter&, const Value& v, Arguments&) { return Whole(v) % 2 == 0; }},
      {"divisibleby",
       [](Interpreter&, const Value& v, Arguments& a) {
         const int64_t by = Whole(Other(a));
         if (by == 0) Fail("division by zero");
         return by == -1 || Whole(v) % by == 0;
       }},
      {"lower", [](Interpreter&, const Value& v,
                   Arguments&) { return v.ToString() == Lower(v.ToString()) && v.ToString() != Upper(v.ToString()); }},
      {"upper", [](Interpreter&, const Value& v,
                   Arguments&) { return v.ToString() == Upper(v.ToString()) && v.ToString() != Lower(v.ToString()); }},
      {"filter", [](Interpreter&, const Value& v, Arguments&) { return FindFilter(v.ToString()) != nullptr; }},
      {"test", [](Interpreter&, const Value& v, Arguments&) { return FindTest(v.ToString()) != nullptr; }},
  };
  return *map;
}

// ---- methods

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

Value Take(const Arguments& arguments, size_t place, const char* name, Value fallback) {
  const Value* v = Given(arguments, place, name);
  return v == nullptr ? fallback : *v;
}

Filter FindFilter(const std::string& name) {
  const auto it = Filters().find(name);
  return it == Filters().end() ? nullptr : it->second;
}

Test FindTest(const std::string& name) {
  const auto it = Tests().find(name);
  return it == Tests().end() ? nullptr : it->second;
}

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
