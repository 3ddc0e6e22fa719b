// Reads the fields of a JSON object strictly: a wrong type, a value out of range and an unknown field are 400; nothing
// is silently ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/value.hpp"
#include "coordinator/http/api_error.h"

namespace gyre::http {

// A request's body as an object. 400: no JSON, no object, nested deeper than 64, or a name occurs twice.
std::optional<ApiError> ParseBody(std::string_view body, boost::json::object* out);

// A field that is null is absent. The first error is kept; after it all calls return "absent". The object outlives it.
class JsonFields {
 public:
  // `path` is put before each name in an error, as "stream_options.".
  explicit JsonFields(const boost::json::object& object, std::string path = "");

  std::optional<bool> Bool(std::string_view name);
  std::optional<double> Number(std::string_view name, double least, double most);
  std::optional<int64_t> Integer(std::string_view name, int64_t least, int64_t most);
  std::optional<std::string> String(std::string_view name);
  const boost::json::array* Array(std::string_view name);
  const boost::json::object* Object(std::string_view name);
  // Reads each element of the array, which the field `name` holds, until the first error. 400: it is no object.
  void EachObject(std::string_view name, const boost::json::array& array, const std::function<void(JsonFields&)>& read);
  // Any type. nullptr: absent.
  const boost::json::value* Any(std::string_view name);
  // The field must be there.
  void Require(std::string_view name);
  // The field may be there and has no effect; docs/api.md lists it.
  void Ignore(std::string_view name);
  // The same for all fields whose name begins so; "": for all fields.
  void IgnoreAll(std::string_view beginning);
  // 400 if the field asks for something: false, 0, "", [] and {} ask for nothing.
  void Refuse(std::string_view name, std::string_view why);
  // 400 if the field is there: even {} asks for something.
  void RefuseAny(std::string_view name, std::string_view why);

  void Fail(ApiError error);
  bool failed() const { return error_.has_value(); }
  std::string Path(std::string_view name) const { return path_ + std::string(name); }
  // Returns the first error; 400 for the first field that was not read.
  std::optional<ApiError> Finish();

 private:
  const boost::json::value* Find(std::string_view name);
  void WrongType(std::string_view name, std::string_view expected);

  const boost::json::object& object_;
  const std::string path_;
  std::vector<std::string> ignored_;  // beginnings
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

}  // namespace gyre::http
