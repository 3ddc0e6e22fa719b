#include "coordinator/grammar/code_points.h"

#include <algorithm>

#include "fmt/core.h"
#include "model/utf8.h"

namespace gyre::grammar {
namespace {

constexpr char32_t kMost = 0x10FFFF, kSurrogates = 0xD800, kSurrogatesEnd = 0xE000;

// The rows of bytes between two rows of one length, when all lower bytes run over the whole of `digit` below.
// first, last: UTF-8 of one length.
ExprId ByteRows(Expressions* e, std::string_view first, std::string_view last) {
  const auto a = static_cast<uint8_t>(first[0]), b = static_cast<uint8_t>(last[0]);
  if (first.size() == 1) return e->Range(a, b);
  const std::string low(first.size() - 1, '\x80'), high(first.size() - 1, '\xBF');
  const std::string_view f = first.substr(1), l = last.substr(1);
  if (a == b) return e->Concat(e->Range(a, a), ByteRows(e, f, l));
  std::vector<ExprId> all;
  uint8_t from = a, to = b;
  if (f != low) all.push_back(e->Concat(e->Range(a, a), ByteRows(e, f, high))), ++from;
  if (l != high) all.push_back(e->Concat(e->Range(b, b), ByteRows(e, low, l))), --to;
  if (from <= to) all.push_back(e->Concat(e->Range(from, to), ByteRows(e, low, high)));
  return e->Alt(std::move(all));
}

ExprId Utf8(Expressions* e, const CodePoints& set) {
  std::vector<ExprId> all;
  for (const CodePoints::Range& r : set.ranges()) {
    for (const char32_t end : {U'\x7F', U'\x7FF', U'\xFFFF', kMost}) {
      const char32_t begin = end == 0x7F ? 0 : end == 0x7FF ? 0x80 : end == 0xFFFF ? 0x800 : 0x10000;
      const char32_t first = std::max(r.first, begin), last = std::min(r.last, end);
      if (first > last) continue;
      std::string f, l;
      AppendUtf8(first, &f);
      AppendUtf8(last, &l);
      all.push_back(ByteRows(e, f, l));
    }
  }
  return e->Alt(std::move(all));
}

ExprId HexDigits(Expressions* e, unsigned first, unsigned last) {
  ByteSet set;
  for (unsigned d = first; d <= last; ++d) {
    set.set(static_cast<size_t>("0123456789abcdef"[d]));
    set.set(static_cast<size_t>("0123456789ABCDEF"[d]));
  }
  return e->Bytes(set);
}

// Numbers of `digits` hexadecimal digits.
ExprId Hex(Expressions* e, unsigned first, unsigned last, int digits) {
  if (digits == 1) return HexDigits(e, first, last);
  const int shift = 4 * (digits - 1);
  const unsigned a = first >> shift, b = last >> shift, mask = (1u << shift) - 1;
  if (a == b) return e->Concat(HexDigits(e, a, a), Hex(e, first & mask, last & mask, digits - 1));
  std::vector<ExprId> all;
  unsigned from = a, to = b;
  if ((first & mask) != 0) all.push_back(e->Concat(HexDigits(e, a, a), Hex(e, first & mask, mask, digits - 1))), ++from;
  if ((last & mask) != mask) all.push_back(e->Concat(HexDigits(e, b, b), Hex(e, 0, last & mask, digits - 1))), --to;
  if (from <= to && from <= b) all.push_back(e->Concat(HexDigits(e, from, to), Hex(e, 0, mask, digits - 1)));
  return e->Alt(std::move(all));
}

// \uXXXX, and pairs of surrogates.
ExprId HexEscapes(Expressions* e, const CodePoints& set) {
  const ExprId u = e->Text("\\u");
  std::vector<ExprId> all;
  for (const CodePoints::Range& r : set.ranges()) {
    if (r.first <= 0xFFFF) all.push_back(e->Concat(u, Hex(e, r.first, std::min<char32_t>(r.last, 0xFFFF), 4)));
    if (r.last < 0x10000) continue;
    const char32_t first = std::max<char32_t>(r.first, 0x10000) - 0x10000, last = r.last - 0x10000;
    const unsigned a = 0xD800 + (first >> 10), b = 0xD800 + (last >> 10);
    const unsigned f = 0xDC00 + (first & 0x3FF), l = 0xDC00 + (last & 0x3FF);
    auto pairs = [&](unsigned high, unsigned high_last, unsigned low, unsigned low_last) {
      all.push_back(e->Concat({u, Hex(e, high, high_last, 4), u, Hex(e, low, low_last, 4)}));
    };
    if (a == b) {
      pairs(a, a, f, l);
      continue;
    }
    unsigned from = a, to = b;
    if (f != 0xDC00) pairs(a, a, f, 0xDFFF), ++from;
    if (l != 0xDFFF) pairs(b, b, 0xDC00, l), --to;
    if (from <= to) pairs(from, to, 0xDC00, 0xDFFF);
  }
  return e->Alt(std::move(all));
}

struct ShortEscape {
  char32_t c;
  const char* text;
};
constexpr ShortEscape kShortEscapes[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'/', "\\/"},  {'\b', "\\b"},
                                         {'\f', "\\f"}, {'\n', "\\n"},  {'\r', "\\r"}, {'\t', "\\t"}};

bool Has(const CodePoints& set, char32_t c) {
  for (const CodePoints::Range& r : set.ranges()) {
    if (c <= r.last) return c >= r.first;
  }
  return false;
}

}  // namespace

CodePoints CodePoints::Words() {
  CodePoints set = Digits();
  set.Add('A', 'Z');
  set.Add('_', '_');
  set.Add('a', 'z');
  return set;
}

CodePoints CodePoints::Spaces() {
  CodePoints set;
  for (const Range& r : {Range{9, 13},
                         {32, 32},
                         {0xA0, 0xA0},
                         {0x1680, 0x1680},
                         {0x2000, 0x200A},
                         {0x2028, 0x2029},
                         {0x202F, 0x202F},
                         {0x205F, 0x205F},
                         {0x3000, 0x3000},
                         {0xFEFF, 0xFEFF}}) {
    set.Add(r.first, r.last);
  }
  return set;
}

CodePoints CodePoints::LineEnds() {
  CodePoints set('\n', '\n');
  set.Add('\r', '\r');
  set.Add(0x2028, 0x2029);
  return set;
}

void CodePoints::Add(char32_t first, char32_t last) {
  last = std::min(last, kMost);
  if (first > last) return;
  if (first < kSurrogatesEnd && last >= kSurrogates) {
    if (first < kSurrogates) Add(first, kSurrogates - 1);
    if (last >= kSurrogatesEnd) Add(kSurrogatesEnd, last);
    return;
  }
  auto from = std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.last + 1 >= first; });
  auto to = from;
  while (to != ranges_.end() && to->first <= last + 1) {
    first = std::min(first, to->first);
    last = std::max(last, to->last);
    ++to;
  }
  ranges_.insert(ranges_.erase(from, to), {first, last});
}

void CodePoints::Add(const CodePoints& other) {
  for (const Range& r : other.ranges_) Add(r.first, r.last);
}

CodePoints CodePoints::Complement() const {
  CodePoints set;
  char32_t next = 0;
  for (const Range& r : ranges_) {
    if (r.first > next) set.Add(next, r.first - 1);
    next = r.last + 1;
  }
  if (next <= kMost) set.Add(next, kMost);
  return set;
}

CodePoints CodePoints::Without(const CodePoints& other) const {
  CodePoints kept = Complement();
  kept.Add(other);
  return kept.Complement();
}

namespace {

// Those that never stand for themselves within quotes.
CodePoints EscapedWithin(char quote) {
  CodePoints c(0, 0x1F);
  c.Add(static_cast<char32_t>(quote), static_cast<char32_t>(quote));
  c.Add('\\', '\\');
  return c;
}

}  // namespace

ExprId OneOf(Expressions* e, const CodePoints& set, Writing writing) {
  if (writing == Writing::kPlain) return Utf8(e, set);
  static const CodePoints kWithinDouble = EscapedWithin('"'), kWithinSingle = EscapedWithin('\'');
  const bool python = writing == Writing::kPythonDouble || writing == Writing::kPythonSingle;
  std::vector<ExprId> all = {Utf8(e, set.Without(writing == Writing::kPythonSingle ? kWithinSingle : kWithinDouble))};
  if (writing == Writing::kJsonString || python) {
    all.push_back(HexEscapes(e, set));
    for (const ShortEscape& s : kShortEscapes) {
      if (Has(set, s.c) && !(python && s.c == '/')) all.push_back(e->Text(s.text));
    }
    if (python && Has(set, '\'')) all.push_back(e->Text("\\'"));
    return e->Alt(std::move(all));
  }
  for (const CodePoints::Range& r : kWithinDouble.ranges()) {
    for (char32_t c = r.first; c <= r.last; ++c) {
      if (!Has(set, c)) continue;
      const std::string quoted = JsonString(std::string(1, static_cast<char>(c)));
      all.push_back(e->Text(std::string_view(quoted).substr(1, quoted.size() - 2)));
    }
  }
  return e->Alt(std::move(all));
}

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    const ShortEscape* escape = nullptr;
    for (const ShortEscape& s : kShortEscapes) {
      if (c != '/' && s.c == static_cast<char32_t>(static_cast<uint8_t>(c))) escape = &s;
    }
    if (escape != nullptr) {
      out += escape->text;
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<uint8_t>(c)));
    } else {
      out += c;
    }
  }
  return out + '"';
}

ExprId AnyWriting(Expressions* e, std::string_view text, Writing writing) {
  if (writing == Writing::kPlain) return e->Text(text);
  std::vector<ExprId> parts;
  for (size_t i = 0; i < text.size();) {
    const size_t n = ValidUtf8Length(text, i);
    if (n == 0) return kNothing;
    const char32_t c = Utf8Decode(text, i, n);
    parts.push_back(OneOf(e, CodePoints(c, c), writing));
    i += n;
  }
  ExprId all = kEpsilon;
  for (size_t i = parts.size(); i-- > 0;) all = e->Concat(parts[i], all);
  return all;
}

}  // namespace gyre::grammar
