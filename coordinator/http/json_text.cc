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
