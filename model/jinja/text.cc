#include "model/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>

#include "model/utf8.h"

namespace gyre::jinja {

const Value* Given(const Arguments& a, size_t place, const char* name) {
  if (place < a.positional.size()) return &a.positional[place];
  for (const auto& [n, v] : a.named) {
    if (n == name) return &v;
  }
  return nullptr;
}
Value Take(const Arguments& a, size_t place, const char* name, Value fallback) {
  const Value* v = Given(a, place, name);
  return v == nullptr ? fallback : *v;
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

namespace {

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

}  // namespace gyre::jinja
