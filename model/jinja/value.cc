#include "model/jinja/value.h"

#include <utf8proc.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>

#include "model/utf8.h"

namespace gyre::jinja {
namespace {

constexpr int kValueDepth = 200;  // of nested values

// The kind and text of a key; numbers that are equal have the same.
std::string KeyText(const Value& key) {
  if (const std::string* s = key.str()) return 's' + *s;
  if (key.integral()) return 'n' + std::to_string(key.AsInt());
  if (key.Is<double>()) {
    const double d = key.AsDouble();
    if (d == std::floor(d) && std::fabs(d) < 9e15) return 'n' + std::to_string(static_cast<int64_t>(d));
    return 'n' + FloatToString(d);
  }
  if (key.none()) return "0";
  if (key.undefined()) return "u";
  if (key.list() != nullptr && key.list()->tuple) return 't' + key.Repr();
  Fail("unhashable type: '{}'", key.TypeName());
}

bool Printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

std::string ReprString(const std::string& s) {
  const char quote = s.find('\'') != std::string::npos && s.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < s.size();) {
    const size_t n = ValidUtf8Length(s, at);
    const char32_t c = n == 0 ? static_cast<uint8_t>(s[at]) : Utf8Decode(s, at, n);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (n == 0 || !Printable(c)) {
      out += c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
             : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                           : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    } else {
      out += s.substr(at, n);
    }
    at += std::max<size_t>(n, 1);
  }
  return out + quote;
}

std::string ReprAt(const Value& v, int depth) {
  if (depth > kValueDepth) Fail("a value is nested more than {} deep", kValueDepth);
  if (const std::string* s = v.str()) return ReprString(*s);
  if (const List* l = v.list()) {
    std::string out = l->tuple ? "(" : "[";
    for (size_t i = 0; i < l->items.size(); ++i) out += (i > 0 ? ", " : "") + ReprAt(l->items[i], depth + 1);
    if (l->tuple && l->items.size() == 1) out += ",";
    return out + (l->tuple ? ")" : "]");
  }
  if (const Dict* d = v.dict()) {
    std::string out = "{";
    for (const auto& [key, value] : d->items()) {
      out += (out.size() > 1 ? ", " : "") + ReprAt(key, depth + 1) + ": " + ReprAt(value, depth + 1);
    }
    return out + "}";
  }
  if (v.undefined()) return "Undefined";
  return v.ToString();
}

void DumpString(const std::string& s, bool ascii, std::string* out) {
  *out += '"';
  for (size_t at = 0; at < s.size();) {
    const size_t n = Utf8Length(s, at);
    const auto c = static_cast<uint8_t>(s[at]);
    switch (c) {
      case '"': *out += "\\\""; break;
      case '\\': *out += "\\\\"; break;
      case '\n': *out += "\\n"; break;
      case '\r': *out += "\\r"; break;
      case '\t': *out += "\\t"; break;
      case '\b': *out += "\\b"; break;
      case '\f': *out += "\\f"; break;
      default:
        if (c < 0x20) {
          *out += fmt::format("\\u{:04x}", c);
        } else if (ascii && n > 1) {
          const auto code = static_cast<uint32_t>(Utf8Decode(s, at, n));
          if (code < 0x10000) {
            *out += fmt::format("\\u{:04x}", code);
          } else {
            *out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF));
          }
        } else {
          out->append(s, at, n);
        }
    }
    at += n;
  }
  *out += '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonOptions& o) : options_(o) {
    if (options_.item_separator.empty()) options_.item_separator = o.indent >= 0 ? "," : ", ";
    if (options_.key_separator.empty()) options_.key_separator = ": ";
  }
  void Write(const Value& v, int depth) {
    if (depth > kValueDepth) Fail("tojson: a value is nested more than {} deep", kValueDepth);
    if (const std::string* s = v.str()) return DumpString(*s, options_.ascii(), &out);
    if (v.none()) {
      out += "null";
    } else if (v.Is<bool>()) {
      out += v.Truthy() ? "true" : "false";
    } else if (v.Is<double>()) {
      const double d = v.AsDouble();
      out += std::isnan(d) ? "NaN" : std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity") : FloatToString(d);
    } else if (v.Is<int64_t>()) {
      out += std::to_string(v.AsInt());
    } else if (const List* l = v.list()) {
      Items('[', ']', l->items.size(), depth, [&](size_t i) { Write(l->items[i], depth + 1); });
    } else if (const Dict* d = v.dict()) {
      std::vector<const std::pair<Value, Value>*> items;
      for (const auto& item : d->items()) items.push_back(&item);
      if (options_.sort_keys) {
        std::stable_sort(items.begin(), items.end(), [](auto* a, auto* b) { return Less(a->first, b->first); });
      }
      Items('{', '}', items.size(), depth, [&](size_t i) {
        DumpString(KeyOf(items[i]->first), options_.ascii(), &out);
        out += options_.key_separator;
        Write(items[i]->second, depth + 1);
      });
    } else {
      Fail("tojson: {} is not JSON serializable", v.TypeName());
    }
  }
  std::string out;

 private:
  struct Options : JsonOptions {
    explicit Options(const JsonOptions& o) : JsonOptions(o) {}
    bool ascii() const { return ensure_ascii; }
  };
  static std::string KeyOf(const Value& key) {
    if (const std::string* s = key.str()) return *s;
    if (key.none()) return "null";
    if (key.Is<bool>()) return key.Truthy() ? "true" : "false";
    return key.ToString();
  }
  template <typename Fn>
  void Items(char open, char close, size_t n, int depth, Fn item) {
    out += open;
    for (size_t i = 0; i < n; ++i) {
      if (i > 0) out += options_.item_separator;
      NewLine(depth + 1);
      item(i);
    }
    if (n > 0) NewLine(depth);
    out += close;
  }
  void NewLine(int depth) {
    if (options_.indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(options_.indent) * static_cast<size_t>(depth), ' ');
  }
  Options options_;
};

}  // namespace

std::string FloatToString(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  char buffer[64];
  // Python writes exponents from 1e16 on and below 1e-4.
  const double a = std::fabs(v);
  const bool scientific = a != 0 && (a >= 1e16 || a < 1e-4);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v,
                                 scientific ? std::chars_format::scientific : std::chars_format::fixed)
                       .ptr;
  std::string out(buffer, end);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

Value Value::OfList(std::vector<Value> items, bool tuple) {
  return Value(Data(std::make_shared<List>(List{std::move(items), tuple})));
}

Value Value::FromJson(const boost::json::value& json) {
  switch (json.kind()) {
    case boost::json::kind::null: return OfNone();
    case boost::json::kind::bool_: return Bool(json.get_bool());
    case boost::json::kind::int64: return Int(json.get_int64());
    case boost::json::kind::uint64: return Float(static_cast<double>(json.get_uint64()));
    case boost::json::kind::double_: return Float(json.get_double());
    case boost::json::kind::string: return Str(std::string(json.get_string().c_str(), json.get_string().size()));
    case boost::json::kind::array: {
      std::vector<Value> items;
      for (const auto& item : json.get_array()) items.push_back(FromJson(item));
      return OfList(std::move(items));
    }
    case boost::json::kind::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& item : json.get_object()) {
        dict->Set(Str(std::string(item.key().data(), item.key().size())), FromJson(item.value()));
      }
      return OfDict(std::move(dict));
    }
  }
  return OfNone();
}

double Value::AsDouble() const {
  if (auto* d = std::get_if<double>(&data_)) return *d;
  return static_cast<double>(AsInt());
}
int64_t Value::AsInt() const {
  if (auto* b = std::get_if<bool>(&data_)) return *b ? 1 : 0;
  return std::get<int64_t>(data_);
}

bool Value::Truthy() const {
  if (number()) return AsDouble() != 0;
  if (const std::string* s = str()) return !s->empty();
  if (const List* l = list()) return !l->items.empty();
  if (const Dict* d = dict()) return d->is_namespace || !d->items().empty();
  return !undefined() && !none();
}

std::string Value::TypeName() const {
  if (undefined()) return "Undefined";
  if (none()) return "NoneType";
  if (Is<bool>()) return "bool";
  if (Is<int64_t>()) return "int";
  if (Is<double>()) return "float";
  if (str() != nullptr) return "str";
  if (list() != nullptr) return list()->tuple ? "tuple" : "list";
  if (dict() != nullptr) return dict()->is_namespace ? "namespace" : "dict";
  return loop() != nullptr ? "loop" : "function";
}

std::string Value::ToString() const {
  if (const std::string* s = str()) return *s;
  if (undefined()) return "";
  if (none()) return "None";
  if (Is<bool>()) return Truthy() ? "True" : "False";
  if (Is<int64_t>()) return std::to_string(AsInt());
  if (Is<double>()) return FloatToString(AsDouble());
  if (list() != nullptr || dict() != nullptr) return Repr();
  return "<" + TypeName() + ">";
}

std::string Value::Repr() const { return ReprAt(*this, 0); }

const Value* Dict::FindKey(const std::string& key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &items_[it->second].second;
}
const Value* Dict::Find(const Value& key) const { return FindKey(KeyText(key)); }
void Dict::Set(const Value& key, Value value) {
  const auto [it, added] = index_.try_emplace(KeyText(key), items_.size());
  if (added) {
    items_.emplace_back(key, std::move(value));
  } else {
    items_[it->second].second = std::move(value);
  }
}

bool Equal(const Value& a, const Value& b) {
  if (a.number() && b.number())
    return a.integral() && b.integral() ? a.AsInt() == b.AsInt() : a.AsDouble() == b.AsDouble();
  if (a.data().index() != b.data().index()) return false;
  if (a.str() != nullptr) return *a.str() == *b.str();
  if (a.list() != nullptr) {
    const List &x = *a.list(), &y = *b.list();
    return x.tuple == y.tuple && std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), Equal);
  }
  if (a.dict() != nullptr) {
    const Dict &x = *a.dict(), &y = *b.dict();
    if (x.is_namespace || y.is_namespace) return &x == &y;
    if (x.items().size() != y.items().size()) return false;
    return std::all_of(x.items().begin(), x.items().end(), [&](const auto& item) {
      const Value* other = y.Find(item.first);
      return other != nullptr && Equal(item.second, *other);
    });
  }
  if (a.loop() != nullptr) return a.loop() == b.loop();
  if (a.function() != nullptr) return a.function() == b.function();
  return true;  // none, undefined
}

bool Less(const Value& a, const Value& b) {
  if (a.number() && b.number())
    return a.integral() && b.integral() ? a.AsInt() < b.AsInt() : a.AsDouble() < b.AsDouble();
  if (a.str() != nullptr && b.str() != nullptr) return *a.str() < *b.str();  // UTF-8 sorts as code points do
  if (a.list() != nullptr && b.list() != nullptr) {
    const auto &x = a.list()->items, &y = b.list()->items;
    return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end(), Less);
  }
  Fail("'<' not supported between instances of '{}' and '{}'", a.TypeName(), b.TypeName());
}

std::string DumpJson(const Value& v, const JsonOptions& options) {
  JsonWriter writer(options);
  writer.Write(v, 0);
  return std::move(writer.out);
}

std::vector<size_t> CharacterOffsets(std::string_view text) {
  std::vector<size_t> out;
  for (size_t at = 0; at < text.size(); at += Utf8Length(text, at)) out.push_back(at);
  out.push_back(text.size());
  return out;
}

size_t CountCharacters(std::string_view text) {
  size_t n = 0;
  for (size_t at = 0; at < text.size(); at += Utf8Length(text, at)) ++n;
  return n;
}

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace gyre::jinja
