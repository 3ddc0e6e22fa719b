#include "model/jinja/print.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/utf8.h"

namespace gyre::jinja {
namespace {

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

// A text that counts against the budget before it grows.
class ChargedText {
 public:
  ChargedText(Budget& budget, std::string* out) : budget_(budget), out_(*out) {}
  Budget& budget() { return budget_; }
  void Add(std::string_view text) {
    budget_.Charge(text.size());
    out_ += text;
  }
  void Fill(size_t n, char c) {
    budget_.Charge(n);
    out_.append(n, c);
  }

 private:
  Budget& budget_;
  std::string& out_;
};

void ReprString(const std::string& s, ChargedText& out) {
  out.budget().Read(s.size());
  const char quote = s.find('\'') != std::string::npos && s.find('"') == std::string::npos ? '"' : '\'';
  out.Fill(1, quote);
  for (size_t at = 0; at < s.size();) {
    const size_t n = ValidUtf8Length(s, at);
    const char32_t c = n == 0 ? static_cast<uint8_t>(s[at]) : Utf8Decode(s, at, n);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.Fill(1, '\\');
      out.Fill(1, static_cast<char>(c));
    } else if (c == '\n') {
      out.Add("\\n");
    } else if (c == '\r') {
      out.Add("\\r");
    } else if (c == '\t') {
      out.Add("\\t");
    } else if (n == 0 || !Printable(c)) {
      out.Add(c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
              : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                            : fmt::format("\\U{:08x}", static_cast<uint32_t>(c)));
    } else {
      out.Add(std::string_view(s).substr(at, n));
    }
    at += std::max<size_t>(n, 1);
  }
  out.Fill(1, quote);
}

// str() of a value that is neither a text nor a container.
std::string SimpleText(const Value& v) {
  if (v.undefined()) return "";
  if (v.none()) return "None";
  if (v.Is<bool>()) return v.Truthy() ? "True" : "False";
  if (v.whole()) return v.Decimal();
  if (v.Is<double>()) return FloatToString(v.AsDouble());
  return "<" + v.TypeName() + ">";
}

// A namespace can hold itself, so the depth is limited here too.
void ReprAt(const Value& v, int depth, ChargedText& out) {
  out.budget().Step();
  if (depth > kMaxNesting) Fail("a value is nested more than {} deep", kMaxNesting);
  if (const std::string* s = v.str()) return ReprString(*s, out);
  if (const List* l = v.list()) {
    out.Add(l->tuple ? "(" : "[");
    for (size_t i = 0; i < l->items.size(); ++i) {
      if (i > 0) out.Add(", ");
      ReprAt(l->items[i], depth + 1, out);
    }
    if (l->tuple && l->items.size() == 1) out.Add(",");
    return out.Add(l->tuple ? ")" : "]");
  }
  if (const Dict* d = v.dict()) {
    out.Add("{");
    bool first = true;
    for (const auto& [key, value] : d->items()) {
      if (!first) out.Add(", ");
      first = false;
      ReprAt(key, depth + 1, out);
      out.Add(": ");
      ReprAt(value, depth + 1, out);
    }
    return out.Add("}");
  }
  out.Add(v.undefined() ? "Undefined" : SimpleText(v));
}

class JsonWriter {
 public:
  JsonWriter(const JsonOptions& o, Budget& budget)
      : options_(o), separators_(o.separators.value_or(std::pair(o.indent ? "," : ", ", ": "))), out_(budget, &text) {}
  void Write(const Value& v, int depth) {
    out_.budget().Step();
    if (depth > kMaxNesting) Fail("tojson: a value is nested more than {} deep", kMaxNesting);
    if (const std::string* s = v.str()) return String(*s);
    if (v.none()) {
      out_.Add("null");
    } else if (v.Is<bool>()) {
      out_.Add(v.Truthy() ? "true" : "false");
    } else if (v.Is<double>()) {
      const double d = v.AsDouble();
      out_.Add(std::isnan(d) ? "NaN" : std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity") : FloatToString(d));
    } else if (v.whole()) {
      out_.Add(v.Decimal());
    } else if (const List* l = v.list()) {
      Items('[', ']', l->items.size(), depth, [&](size_t i) { Write(l->items[i], depth + 1); });
    } else if (const Dict* d = v.dict()) {
      Object(*d, depth);
    } else {
      Fail("tojson: {} is not JSON serializable", v.TypeName());
    }
  }
  std::string text;

 private:
  void Object(const Dict& d, int depth) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : d.items()) items.push_back(&item);
    if (options_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [this](auto* a, auto* b) { return Less(a->first, b->first, out_.budget()); });
    }
    Items('{', '}', items.size(), depth, [&](size_t i) {
      Key(items[i]->first);
      out_.Add(separators_.second);
      Write(items[i]->second, depth + 1);
    });
  }
  void Key(const Value& key) {
    if (const std::string* s = key.str()) return String(*s);
    if (key.none()) return String("null");
    if (key.Is<bool>()) return String(key.Truthy() ? "true" : "false");
    String(ToText(key, out_.budget()));
  }
  void String(const std::string& s) {
    out_.budget().Read(s.size());
    out_.Fill(1, '"');
    for (size_t at = 0; at < s.size();) {
      const size_t n = Utf8Length(s, at);
      const auto c = static_cast<uint8_t>(s[at]);
      switch (c) {
        case '"': out_.Add("\\\""); break;
        case '\\': out_.Add("\\\\"); break;
        case '\n': out_.Add("\\n"); break;
        case '\r': out_.Add("\\r"); break;
        case '\t': out_.Add("\\t"); break;
        case '\b': out_.Add("\\b"); break;
        case '\f': out_.Add("\\f"); break;
        default:
          if (c < 0x20) {
            out_.Add(fmt::format("\\u{:04x}", c));
          } else if (options_.ensure_ascii && n > 1) {
            Ascii(static_cast<uint32_t>(Utf8Decode(s, at, n)));
          } else {
            out_.Add(std::string_view(s).substr(at, n));
          }
      }
      at += n;
    }
    out_.Fill(1, '"');
  }
  void Ascii(uint32_t code) {
    if (code < 0x10000) return out_.Add(fmt::format("\\u{:04x}", code));
    out_.Add(fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF)));
  }
  template <typename Fn>
  void Items(char open, char close, size_t n, int depth, Fn item) {
    out_.Fill(1, open);
    for (size_t i = 0; i < n; ++i) {
      if (i > 0) out_.Add(separators_.first);
      NewLine(depth + 1);
      item(i);
    }
    if (n > 0) NewLine(depth);
    out_.Fill(1, close);
  }
  void NewLine(int depth) {
    if (!options_.indent) return;
    out_.Fill(1, '\n');
    for (int i = 0; i < depth; ++i) out_.Add(*options_.indent);
  }
  const JsonOptions& options_;
  const std::pair<std::string, std::string> separators_;
  ChargedText out_;
};

}  // namespace

void AppendText(const Value& v, Budget& budget, std::string* out) {
  ChargedText charged(budget, out);
  if (const std::string* s = v.str()) {
    charged.Add(*s);
  } else if (v.list() != nullptr || v.dict() != nullptr) {
    ReprAt(v, 0, charged);
  } else {
    charged.Add(SimpleText(v));
  }
}

std::string ToText(const Value& v, Budget& budget) {
  std::string out;
  AppendText(v, budget, &out);
  return out;
}

std::string Repr(const Value& v, Budget& budget) {
  std::string out;
  ChargedText charged(budget, &out);
  ReprAt(v, 0, charged);
  return out;
}

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

std::string DumpJson(const Value& v, const JsonOptions& options, Budget& budget) {
  JsonWriter writer(options, budget);
  writer.Write(v, 0);
  return std::move(writer.text);
}

}  // namespace gyre::jinja
