#include "coordinator/http/json_text.h"

#include "model/utf8.h"

namespace gyre::http {

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
