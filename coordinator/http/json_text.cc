#include "coordinator/http/json_text.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "fmt/core.h"
#include "model/utf8.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

void AppendNumber(double value, std::string* out) {
  if (!std::isfinite(value)) {
    *out += "null";
    return;
  }
  const size_t begin = out->size();
  fmt::format_to(std::back_inserter(*out), "{}", value);
  // Some clients tell whole numbers from others by their form.
  if (out->find_first_of(".e", begin) == std::string::npos) *out += ".0";
}

}  // namespace

std::string ValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = ValidUtf8Length(bytes, at);
    if (n == 0) {
      out += "\xEF\xBF\xBD";
      ++at;
      continue;
    }
    out.append(bytes.substr(at, n));
    at += n;
  }
  return out;
}

void AppendQuoted(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  *out += '"';
  size_t from = 0;  // what follows is not yet in `out`
  for (size_t at = 0; at < text.size(); ++at) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out->append(text.substr(from, at - from));
    from = at + 1;
    *out += '\\';
    switch (c) {
      case '"': *out += '"'; break;
      case '\\': *out += '\\'; break;
      case '\n': *out += 'n'; break;
      case '\r': *out += 'r'; break;
      case '\t': *out += 't'; break;
      default:
        *out += "u00";
        *out += kHex[c >> 4];
        *out += kHex[c & 15];
    }
  }
  out->append(text.substr(from));
  *out += '"';
}

void AppendJson(const json::value& value, std::string* out) {
  char separator = '[';
  switch (value.kind()) {
    case json::kind::null: *out += "null"; break;
    case json::kind::bool_: *out += value.get_bool() ? "true" : "false"; break;
    case json::kind::int64: fmt::format_to(std::back_inserter(*out), "{}", value.get_int64()); break;
    case json::kind::uint64: fmt::format_to(std::back_inserter(*out), "{}", value.get_uint64()); break;
    case json::kind::double_: AppendNumber(value.get_double(), out); break;
    case json::kind::string: AppendQuoted(View(value.get_string()), out); break;
    case json::kind::array:
      for (const json::value& item : value.get_array()) {
        *out += std::exchange(separator, ',');
        AppendJson(item, out);
      }
      *out += value.get_array().empty() ? "[]" : "]";
      break;
    case json::kind::object:
      separator = '{';
      for (const auto& [key, item] : value.get_object()) {
        *out += std::exchange(separator, ',');
        AppendQuoted(View(key), out);
        *out += ':';
        AppendJson(item, out);
      }
      *out += value.get_object().empty() ? "{}" : "}";
      break;
  }
}

std::string WriteJson(const json::value& value) {
  std::string out;
  AppendJson(value, &out);
  return out;
}

double DecimalOf(float value) {
  const std::string digits = fmt::format("{}", value);
  double out = value;
  if (std::isfinite(value)) std::from_chars(digits.data(), digits.data() + digits.size(), out);
  return out;
}

std::string SseEvent(std::string_view json, std::string_view name) {
  std::string out;
  out.reserve(json.size() + name.size() + 16);
  if (!name.empty()) {
    out += "event: ";
    out += name;
    out += '\n';
  }
  out += "data: ";
  out += json;
  out += "\n\n";
  return out;
}

}  // namespace gyre::http
