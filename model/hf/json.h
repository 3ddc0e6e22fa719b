// Helpers to read Hugging Face's JSON files, whose values may be absent or of another kind.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "boost/json.hpp"

namespace gyre {

// The text of a value; "" if it is not a string.
inline std::string Text(const boost::json::value* v) {
  return v != nullptr && v->is_string() ? std::string(v->get_string().data(), v->get_string().size()) : std::string();
}
inline const boost::json::object* Object(const boost::json::object& o, const char* key) {
  const boost::json::value* v = o.if_contains(key);
  return v != nullptr ? v->if_object() : nullptr;
}
inline const boost::json::array* Array(const boost::json::object& o, const char* key) {
  const boost::json::value* v = o.if_contains(key);
  return v != nullptr ? v->if_array() : nullptr;
}
inline bool Flag(const boost::json::object& o, const char* key, bool fallback = false) {
  const boost::json::value* v = o.if_contains(key);
  return v != nullptr && v->is_bool() ? v->get_bool() : fallback;
}
inline std::string Kind(const boost::json::object& o) { return Text(o.if_contains("type")); }

// kDataLoss: the message says what is wrong, and at which byte.
inline StatusOr<boost::json::object> ParseObject(std::string_view text) {
  boost::json::parser parser;
  boost::system::error_code error;
  const size_t at = parser.write_some({text.data(), text.size()}, error);
  if (!error && text.find_first_not_of(" \t\r\n", at) != std::string_view::npos)
    return DataLoss("no JSON object: more follows its end at byte {} of {}", at, text.size());
  if (error) return DataLoss("no JSON object: {} at byte {} of {}", error.message(), at, text.size());
  boost::json::value v = parser.release();
  if (!v.is_object()) return DataLoss("no JSON object, expected one at byte 0 of {}", text.size());
  return std::move(v.get_object());
}

// Calls fn for a step, or for each step of a Sequence.
template <typename Fn>
Status ForEachStep(const boost::json::object* o, const char* list, Fn fn) {
  if (o == nullptr) return absl::OkStatus();
  if (Kind(*o) != "Sequence") return fn(*o);
  const boost::json::array* steps = Array(*o, list);
  for (size_t i = 0; steps != nullptr && i < steps->size(); ++i) {
    const boost::json::object* step = (*steps)[i].if_object();
    if (step != nullptr) GYRE_RETURN_IF_ERROR(ForEachStep(step, list, fn));
  }
  return absl::OkStatus();
}

}  // namespace gyre
