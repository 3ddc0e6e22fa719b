// printf-style formatting: the filter format and the operator %.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <optional>

#include "model/jinja/builtins.h"
#include "model/jinja/print.h"
#include "model/jinja/text.h"

namespace gyre::jinja {
namespace {

// The part of a format between % and the kind of value.
struct Spec {
  bool left = false, plus = false, space = false, zero = false, alternate = false;
  size_t width = 0;
  std::optional<size_t> precision;
};

// Reads a number at `*at` and moves behind it. Whoever calls it limits the digits.
size_t ReadNumber(const std::string& format, size_t* at) {
  size_t n = 0;
  for (; *at < format.size() && std::isdigit(static_cast<uint8_t>(format[*at])) != 0; ++*at) {
    n = 10 * n + static_cast<size_t>(format[*at] - '0');
  }
  return n;
}

// Reads what comes before the kind, and moves `*at` to the kind.
Spec ReadSpec(const std::string& format, size_t* at) {
  const size_t begin = *at, end = std::min(format.find_first_not_of("-+ 0#123456789.", begin), format.size());
  constexpr size_t kLongest = 6;
  if (end < format.size() && format[end] != '%' && end - begin > kLongest)
    Fail("the format %{} is too wide", format.substr(begin, end - begin));
  Spec spec;
  for (; *at < end; ++*at) {
    switch (format[*at]) {
      case '-': spec.left = true; continue;
      case '+': spec.plus = true; continue;
      case ' ': spec.space = true; continue;
      case '0': spec.zero = true; continue;
      case '#': spec.alternate = true; continue;
      default: break;
    }
    break;
  }
  spec.width = ReadNumber(format, at);
  if (*at < end && format[*at] == '.') {
    ++*at;
    spec.precision = ReadNumber(format, at);
  }
  return spec;
}

// The text, of `length` characters, in its width. Zeros go between `before`, which is the sign and a prefix, and it.
std::string Padded(Interpreter& i, const Spec& spec, const std::string& before, const std::string& text, size_t length,
                   bool zero) {
  const size_t fill = spec.width - std::min(spec.width, length + before.size());
  i.budget().Charge(before.size() + text.size() + fill);
  if (spec.left) return before + text + std::string(fill, ' ');
  return zero ? before + std::string(fill, '0') + text : std::string(fill, ' ') + before + text;
}

std::string OfText(Interpreter& i, const Spec& spec, std::string text) {
  if (spec.precision) {  // at most so many characters
    const size_t end = CharacterOffset(text, static_cast<int64_t>(*spec.precision));
    if (end != std::string::npos) text.resize(end);
  }
  return Padded(i, spec, "", text, CountCharacters(text), false);
}

std::string SignOf(const Spec& spec, bool negative) { return negative ? "-" : spec.plus ? "+" : spec.space ? " " : ""; }

std::string OfWhole(Interpreter& i, const Spec& spec, char kind, const Value& v) {
  const bool decimal = kind == 'd' || kind == 'i' || kind == 'u';
  if (!decimal && !v.whole()) Fail("%{} format: an integer is required, not {}", kind, v.TypeName());
  std::string digits = (v.whole() ? v : Value::Truncated(v.AsDouble())).Decimal();
  const bool negative = digits[0] == '-';
  if (negative) digits.erase(0, 1);
  std::string before = SignOf(spec, negative);
  if (!decimal) {
    digits = InBase(i.budget(), digits, 10, kind == 'o' ? 8 : 16);
    if (spec.alternate) before += kind == 'o' ? "0o" : "0x";
  }
  const size_t least = spec.precision.value_or(0), zeros = least - std::min(least, digits.size());
  i.budget().Charge(zeros);
  digits.insert(0, zeros, '0');
  std::string out = Padded(i, spec, before, digits, digits.size(), spec.zero);
  if (kind == 'X') std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

std::string OfFloat(Interpreter& i, const Spec& spec, char kind, const Value& v) {
  const double d = v.AsDouble();
  if (v.big() != nullptr && std::isinf(d)) Fail("int too large to convert to float");
  const char format[] = {'%', spec.alternate ? '#' : '0', '.', '*', kind, '\0'};
  const int precision = static_cast<int>(spec.precision.value_or(6));
  i.budget().Charge(static_cast<size_t>(precision));
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format, precision, std::fabs(d))), '\0');
  std::snprintf(text.data(), text.size() + 1, format, precision, std::fabs(d));
  return Padded(i, spec, SignOf(spec, std::signbit(d) && !std::isnan(d)), text, text.size(), spec.zero);
}

}  // namespace

std::string Format(Interpreter& i, const std::string& format, const std::vector<Value>& values) {
  i.budget().Charge(format.size() + Budget::kObject);
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    const Spec spec = ReadSpec(format, &++at);
    if (at >= format.size()) Fail("incomplete format");
    const char kind = format[at];
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (used >= values.size()) Fail("not enough arguments for format string");
    const Value& v = values[used++];
    if (kind == 's' || kind == 'r') {
      out += OfText(i, spec, kind == 's' ? ToText(v, i.budget()) : Repr(v, i.budget()));
      continue;
    }
    if (!v.number()) Fail("%{} format: a number is required, not {}", kind, v.TypeName());
    if (std::string_view("diuxXo").find(kind) != std::string_view::npos) {
      out += OfWhole(i, spec, kind, v);
    } else if (std::string_view("fFeEgG").find(kind) != std::string_view::npos) {
      out += OfFloat(i, spec, kind, v);
    } else {
      Fail("unsupported format character '{}'", kind);
    }
  }
  if (used < values.size()) Fail("not all arguments converted during string formatting");
  return out;
}

}  // namespace gyre::jinja
