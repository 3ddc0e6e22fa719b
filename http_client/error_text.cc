#include "http_client/error_text.h"

#include <boost/json.hpp>

#include "http_client/json_fields.h"

namespace gyre {
namespace json = boost::json;

std::string ErrorText(const json::value& v) {
  if (const json::value* error = FieldOf(v, "error")) {
    return error->is_string() ? TextOf(v, "error") : TextOf(*error, "message");
  }
  for (const char* key : {"message", "detail"}) {
    if (const json::value* found = FieldOf(v, key))
      return found->is_string() ? TextOf(v, key) : json::serialize(*found);
  }
  return "";
}

std::string Printable(std::string text) {
  constexpr size_t kLongest = 500;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7F') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  if (text.size() <= kLongest) return text;
  size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

std::string ErrorText(const HttpHead& head, const std::string& body) {
  json::error_code error;
  const json::value v = json::parse(body, error);
  std::string text = error ? "" : ErrorText(v);
  if (text.empty() && head.content_type.find("html") == std::string::npos) text = body;
  return Printable(text);
}

}  // namespace gyre
