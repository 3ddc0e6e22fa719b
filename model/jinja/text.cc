#include "model/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>

#include "model/jinja/print.h"
#include "model/utf8.h"

namespace gyre::jinja {

void Check(const char* kind, std::string_view function, const Arguments& a, std::string_view names) {
  if (names == "*") return;
  const auto what = [&] { return *kind == '\0' ? std::string(function) : fmt::format("the {} '{}'", kind, function); };
  const bool by_place = names.substr(0, 1) == "/";
  if (by_place) names.remove_prefix(1);
  size_t count = 0;
  std::vector<std::string_view> later;  // those that are not given by their places
  while (!names.empty()) {
    const size_t end = std::min(names.find(','), names.size());
    std::string_view name = names.substr(0, end);
    names.remove_prefix(std::min(end + 1, names.size()));
    const bool needed = name.back() == '!';
    if (needed) name.remove_suffix(1);
    const bool placed = count++ < a.positional.size();
    if (!placed) later.push_back(name);
    const bool named = std::any_of(a.named.begin(), a.named.end(), [&](const auto& n) { return n.first == name; });
    if (needed && !placed && (by_place || !named)) Fail("{} needs the argument {}", what(), name);
  }
  if (a.positional.size() > count) Fail("{} takes at most {} arguments, not {}", what(), count, a.positional.size());
  for (const auto& given : a.named) {
    if (by_place || std::find(later.begin(), later.end(), given.first) == later.end())
      Fail("{} has no argument {}, or it is given twice", what(), given.first);
  }
}

const Value* Given(const Arguments& a, size_t place, const char* name) {
  if (place < a.positional.size()) return &a.positional[place];
  for (const auto& [n, v] : a.named) {
    if (n == name) return &v;
  }
  return nullptr;
}
const Value* GivenSome(const Arguments& a, size_t place, const char* name) {
  const Value* v = Given(a, place, name);
  return v == nullptr || v->none() ? nullptr : v;
}
Value Take(const Arguments& a, size_t place, const char* name, Value fallback) {
  const Value* v = Given(a, place, name);
  return v == nullptr ? fallback : *v;
}
int64_t TakeInt(const Arguments& a, size_t place, const char* name, int64_t fallback) {
  const Value* v = GivenSome(a, place, name);
  if (v == nullptr) return fallback;
  FailOnOverflow(v->big() != nullptr);
  if (!v->integral()) Fail("the argument {} is a {}, expected an integer", name, v->TypeName());
  return v->AsInt();
}
bool TakeBool(const Arguments& a, size_t place, const char* name, bool fallback) {
  const Value* v = Given(a, place, name);
  return v == nullptr ? fallback : v->Truthy();
}
std::string TakeText(Interpreter& i, const Arguments& a, size_t place, const char* name, const std::string& fallback) {
  const Value* v = GivenSome(a, place, name);
  return v == nullptr ? fallback : ToText(*v, i.budget());
}

TextOf::TextOf(Interpreter& i, const Value& v) : text_(v.str()) {
  if (text_ == nullptr) {
    made_ = ToText(v, i.budget());
  } else {
    i.budget().Read(text_->size());
  }
}

Value Text(Interpreter& i, std::string s) {
  i.budget().Charge(s.size() + Budget::kObject);
  return Value::Str(std::move(s));
}

namespace {

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

}  // namespace

Value Escape(Interpreter& i, const Value& v) {
  if (v.safe()) return v;
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
  return Value::Safe(std::move(out));
}

int DigitValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 32);
  return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 36;
}

std::string InBase(Budget& budget, std::string_view digits, int from, int to) {
  if (digits.size() > kMostDigits) Fail("a number is too large");
  constexpr size_t kDigitsPerStep = 256;
  budget.Step(digits.size() * digits.size() / kDigitsPerStep);
  std::vector<int> out{0};  // the last digit first
  for (const char c : digits) {
    int carry = DigitValue(c);
    for (int& digit : out) {
      carry += digit * from;
      digit = carry % to;
      carry /= to;
    }
    for (; carry > 0; carry /= to) out.push_back(carry % to);
  }
  std::string text;
  for (auto digit = out.rbegin(); digit != out.rend(); ++digit) {
    text += "0123456789abcdefghijklmnopqrstuvwxyz"[*digit];
  }
  return text;
}

std::string Negated(const std::string& decimal) { return decimal[0] == '-' ? decimal.substr(1) : "-" + decimal; }

size_t CountCharacters(std::string_view text) {
  size_t n = 0;
  for (size_t at = 0; at < text.size(); at += Utf8Length(text, at)) ++n;
  return n;
}

// A valid character's first byte is never inside another character, so both directions find the same characters.
size_t LastUtf8Length(std::string_view text, size_t end) {
  for (size_t n = 1; n <= std::min<size_t>(4, end); ++n) {
    if (ValidUtf8Length(text.substr(0, end), end - n) == n) return n;
  }
  return 1;
}

size_t CharacterOffset(std::string_view text, int64_t index) {
  if (index < 0) {
    size_t at = text.size();
    for (; index < 0; ++index) {
      if (at == 0) return std::string_view::npos;
      at -= LastUtf8Length(text, at);
    }
    return at;
  }
  size_t at = 0;
  for (; at < text.size() && index > 0; --index) at += Utf8Length(text, at);
  return at < text.size() ? at : std::string_view::npos;
}

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

namespace {

bool SpaceAt(std::string_view s, size_t at) {
  const size_t n = ValidUtf8Length(s, at);
  return n > 0 && IsSpace(Utf8Decode(s, at, n));
}

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

}  // namespace

std::string Upper(const std::string& s) { return MapCharacters(s, utf8proc_toupper); }
std::string Lower(const std::string& s) { return MapCharacters(s, utf8proc_tolower); }
std::string Capitalize(const std::string& s) {
  const size_t first = s.empty() ? 0 : Utf8Length(s, 0);
  return Upper(s.substr(0, first)) + Lower(s.substr(first));
}
bool Letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
int64_t CountWords(std::string_view text) {
  int64_t n = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size(); at += Utf8Length(text, at)) {
    const size_t length = ValidUtf8Length(text, at);
    const char32_t c = length == 0 ? 0xFFFD : Utf8Decode(text, at, length);
    const bool word = c == '_' || Letter(c) || Numeric(c);
    n += word && !in_word ? 1 : 0;
    in_word = word;
  }
  return n;
}
bool Numeric(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}
bool Digit(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND; }
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

std::string Strip(Interpreter& i, std::string_view s, const Value* chars, Side side) {
  const bool white = chars == nullptr || chars->none() || chars->undefined();
  const std::string set = white ? "" : ToText(*chars, i.budget());
  size_t begin = 0, end = s.size();
  auto goes = [&](size_t at, size_t n) {
    if (white) return SpaceAt(s, at);
    i.budget().Search(set.size(), n);
    return set.find(s.substr(at, n)) != std::string::npos;
  };
  while ((static_cast<int>(side) & 1) != 0 && begin < end) {
    const size_t n = Utf8Length(s, begin);
    if (!goes(begin, n)) break;
    begin += n;
  }
  while ((static_cast<int>(side) & 2) != 0 && end > begin) {
    const size_t n = LastUtf8Length(s, end);
    if (!goes(end - n, n)) break;
    end -= n;
  }
  return std::string(s.substr(begin, end - begin));
}

std::string Replace(Interpreter& i, const std::string& s, const std::string& from, const std::string& to,
                    int64_t count) {
  Budget& budget = i.budget();
  budget.Search(s.size(), from.size());
  budget.Charge(s.size());
  std::string out;
  size_t at = 0;
  if (from.empty()) {  // before each character and at the end, as Python does
    for (bool more = true; more && count != 0; --count) {
      budget.Charge(to.size());
      out += to;
      more = at < s.size();
      const size_t n = more ? Utf8Length(s, at) : 0;
      out.append(s, at, n);
      at += n;
    }
    return out.append(s, at);
  }
  for (; count != 0; --count) {
    const size_t next = s.find(from, at);
    if (next == std::string::npos) break;
    budget.Charge(to.size());
    out.append(s, at, next - at);
    out += to;
    at = next + from.size();
  }
  return out.append(s, at);
}

namespace {

// The parts of a text, each counted against the budget.
class Parts {
 public:
  Parts(Interpreter& i, int64_t most) : i_(i), most_(most) {}
  bool full() const { return most_ >= 0 && static_cast<int64_t>(items_.size()) >= most_; }
  void Add(std::string_view part) {
    i_.budget().Charge(part.size() + Budget::kObject);
    items_.push_back(Value::Str(std::string(part)));
  }
  Value Take(bool reversed) {
    if (reversed) std::reverse(items_.begin(), items_.end());
    return i_.NewList(std::move(items_));
  }

 private:
  Interpreter& i_;
  const int64_t most_;
  std::vector<Value> items_;
};

void SplitByWhiteSpace(Interpreter& i, std::string_view s, Parts* parts) {
  for (size_t at = 0;;) {
    while (at < s.size() && SpaceAt(s, at)) at += Utf8Length(s, at);
    if (at == s.size()) return;
    if (parts->full()) return parts->Add(Strip(i, s.substr(at), nullptr, Side::kRight));
    const size_t begin = at;
    while (at < s.size() && !SpaceAt(s, at)) at += Utf8Length(s, at);
    parts->Add(s.substr(begin, at - begin));
  }
}

void SplitByWhiteSpaceFromRight(Interpreter& i, std::string_view s, Parts* parts) {
  const auto space_before = [&](size_t end) { return SpaceAt(s, end - LastUtf8Length(s, end)); };
  for (size_t at = s.size();;) {
    while (at > 0 && space_before(at)) at -= LastUtf8Length(s, at);
    if (at == 0) return;
    if (parts->full()) return parts->Add(Strip(i, s.substr(0, at), nullptr, Side::kLeft));
    const size_t end = at;
    while (at > 0 && !space_before(at)) at -= LastUtf8Length(s, at);
    parts->Add(s.substr(at, end - at));
  }
}

void SplitBy(std::string_view s, const std::string& by, Parts* parts) {
  for (size_t at = 0;;) {
    const size_t next = parts->full() ? std::string::npos : s.find(by, at);
    if (next == std::string::npos) return parts->Add(s.substr(at));
    parts->Add(s.substr(at, next - at));
    at = next + by.size();
  }
}

void SplitFromRightBy(std::string_view s, const std::string& by, Parts* parts) {
  for (size_t end = s.size();;) {
    const size_t next = parts->full() || end < by.size() ? std::string::npos : s.rfind(by, end - by.size());
    if (next == std::string::npos) return parts->Add(s.substr(0, end));
    parts->Add(s.substr(next + by.size(), end - next - by.size()));
    end = next;
  }
}

}  // namespace

Value SplitText(Interpreter& i, const std::string& s, const Value* separator, int64_t most, bool from_right) {
  Parts parts(i, most);
  if (separator == nullptr || separator->none()) {
    i.budget().Read(s.size());
    from_right ? SplitByWhiteSpaceFromRight(i, s, &parts) : SplitByWhiteSpace(i, s, &parts);
  } else {
    const std::string by = ToText(*separator, i.budget());
    if (by.empty()) Fail("empty separator");
    i.budget().Search(s.size(), by.size());
    from_right ? SplitFromRightBy(s, by, &parts) : SplitBy(s, by, &parts);
  }
  return parts.Take(from_right);
}

std::vector<std::string> Lines(Interpreter& i, const std::string& s, bool keep_ends) {
  std::vector<std::string> out;
  for (size_t at = 0; at < s.size();) {
    size_t end = at;
    while (end < s.size() && s[end] != '\n' && s[end] != '\r') ++end;
    size_t next = end;
    if (next < s.size()) next += s[next] == '\r' && next + 1 < s.size() && s[next + 1] == '\n' ? 2 : 1;
    i.budget().Charge((keep_ends ? next : end) - at + Budget::kObject);
    out.push_back(s.substr(at, (keep_ends ? next : end) - at));
    at = next;
  }
  return out;
}

}  // namespace gyre::jinja
