// Helpers to read Hugging Face's JSON files, whose values may be absent or of another kind.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "boost/json.hpp"
#include "model/quoted.h"

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

// A value for messages, cut and printable.
inline std::string Shown(const boost::json::value& v) {
  if (v.is_string()) return '"' + Printable(Text(&v)) + '"';
  return Printable(v.is_double() ? fmt::format("{}", v.get_double()) : boost::json::serialize(v));
}

// Null, or an object or a list without items.
inline bool IsEmpty(const boost::json::value& v) {
  return v.is_null() || (v.is_object() && v.get_object().empty()) || (v.is_array() && v.get_array().empty());
}
// Numbers are equal whatever their kind: 7 and 7.0 are.
inline bool Equal(const boost::json::value& a, const boost::json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  return a == b;
}
inline bool IsOneOf(const boost::json::value& v, const boost::json::array& list) {
  return std::any_of(list.begin(), list.end(), [&v](const boost::json::value& one) { return Equal(v, one); });
}
// The values of a list, for messages.
inline std::string ShownList(const boost::json::array& list) {
  std::string out;
  for (const boost::json::value& one : list) out += (out.empty() ? "" : " and ") + Shown(one);
  return out;
}

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

// Calls fn for the step root[key], or for each step of a Sequence, whose steps are in `list`. kDataLoss: a step is no
// object, or a Sequence has no list; else the errors of fn.
template <typename Fn>
Status ForEachStep(const boost::json::value& v, const char* list, Fn& fn, int depth) {
  constexpr int kMaxDepth = 16;
  const boost::json::object* o = v.if_object();
  if (o == nullptr || depth > kMaxDepth) return DataLoss("a step is no object, or is nested too deep");
  if (Kind(*o) != "Sequence") return fn(*o);
  const boost::json::array* steps = Array(*o, list);
  if (steps == nullptr) return DataLoss("a Sequence has no {}", list);
  for (const boost::json::value& step : *steps) GYRE_RETURN_IF_ERROR(ForEachStep(step, list, fn, depth + 1));
  return absl::OkStatus();
}
template <typename Fn>
Status ForEachStep(const boost::json::object& root, const char* key, const char* list, Fn fn) {
  const boost::json::value* v = root.if_contains(key);
  if (v == nullptr || v->is_null()) return absl::OkStatus();
  return ForEachStep(*v, list, fn, 0);
}

}  // namespace gyre
