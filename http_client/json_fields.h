// Fields of JSON from other programs: a field that is missing or of another type reads as empty.
#pragma once

#include <cstdint>
#include <string>

#include "boost/json/value.hpp"

namespace gyre {

// nullptr: `v` is no object, or has no such field, or the field is null.
inline const boost::json::value* FieldOf(const boost::json::value& v, const char* key) {
  const boost::json::object* o = v.if_object();
  const boost::json::value* found = o == nullptr ? nullptr : o->if_contains(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

inline std::string TextOf(const boost::json::value& v, const char* key) {
  const boost::json::value* found = FieldOf(v, key);
  return found != nullptr && found->is_string() ? std::string(found->get_string()) : std::string();
}

inline double NumberOf(const boost::json::value& v, const char* key, double otherwise) {
  const boost::json::value* found = FieldOf(v, key);
  return found != nullptr && found->is_number() ? found->to_number<double>() : otherwise;
}

// A whole number that is not negative; 0 otherwise.
inline uint64_t CountOf(const boost::json::value& v, const char* key) {
  const double n = NumberOf(v, key, 0);
  return n > 0 && n < 9e18 ? static_cast<uint64_t>(n) : 0;
}

inline bool IsTrue(const boost::json::value& v, const char* key) {
  const boost::json::value* found = FieldOf(v, key);
  return found != nullptr && found->is_bool() && found->get_bool();
}

}  // namespace gyre
