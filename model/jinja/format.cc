// printf-style formatting: the filter format and the operator %.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "model/jinja/builtins.h"
#include "model/jinja/print.h"
#include "model/jinja/text.h"

namespace gyre::jinja {

// printf-style: %s %r %d %i %f %x %%, with width and precision.
std::string Format(Interpreter& i, const std::string& format, const std::vector<Value>& values) {
  i.budget().Charge(format.size() + Budget::kObject);
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
      const std::string text = kind == 's' ? ToText(v, i.budget()) : Repr(v, i.budget());
      const size_t width = static_cast<size_t>(std::abs(std::atoi(spec.c_str() + 1)));
      const size_t length = CountCharacters(text);
      const std::string pad(width > length ? width - length : 0, ' ');
      i.budget().Charge(pad.size());
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
    i.budget().Charge(std::strlen(buffer));
    out += buffer;
  }
  if (used < values.size()) Fail("not all arguments converted during string formatting");
  return out;
}

}  // namespace gyre::jinja
