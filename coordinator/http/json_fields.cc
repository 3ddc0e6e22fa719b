#include "coordinator/http/json_fields.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "boost/json/basic_parser_impl.hpp"
#include "boost/json/stream_parser.hpp"
#include "coordinator/http/json_text.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

constexpr int kMaxDepth = 64;

// Finds a name that occurs twice in one object, as readers differ in which of the two counts.
struct TwiceHandler {
  static constexpr size_t max_object_size = size_t(-1), max_array_size = size_t(-1), max_key_size = size_t(-1),
                          max_string_size = size_t(-1);
  std::vector<std::set<std::string, std::less<>>> open;
  std::string key, twice;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) { return open.emplace_back(), true; }
  bool on_object_end(size_t, json::error_code&) { return open.pop_back(), true; }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view text, size_t, json::error_code&) { return key += View(text), true; }
  bool on_key(json::string_view text, size_t, json::error_code&) {
    key += View(text);
    if (!open.back().insert(key).second && twice.empty()) twice = key;
    key.clear();
    return true;
  }
  bool on_string_part(json::string_view, size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

bool AsksForNothing(const json::value& value) {
  switch (value.kind()) {
    case json::kind::bool_: return !value.get_bool();
    case json::kind::string: return value.get_string().empty();
    case json::kind::array: return value.get_array().empty();
    case json::kind::object: return value.get_object().empty();
    case json::kind::null: return true;
    default: return value.to_number<double>() == 0;
  }
}

// Returns "" if no name occurs twice. REQUIRES: valid JSON.
std::string NameThatStandsTwice(std::string_view body) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::basic_parser<TwiceHandler> parser(options);
  json::error_code error;
  parser.write_some(false, body.data(), body.size(), error);
  return parser.handler().twice;
}

}  // namespace

std::optional<ApiError> ParseBody(std::string_view body, json::object* out) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::error_code error;
  json::stream_parser parser({}, options);
  const size_t read = parser.write_some(body.data(), body.size(), error);
  if (!error && body.find_first_not_of(" \t\r\n", read) != std::string_view::npos) error = json::error::extra_data;
  if (!error) parser.finish(error);
  if (error) return BadRequest(fmt::format("the body is not valid JSON: {} near byte {}", error.message(), read));
  json::value value = parser.release();
  if (!value.is_object()) return BadRequest("the body must be a JSON object");
  if (const std::string twice = NameThatStandsTwice(body); !twice.empty()) {
    return BadRequest(fmt::format("the name {} stands twice in one object", twice), twice);
  }
  *out = std::move(value.get_object());
  return std::nullopt;
}

JsonFields::JsonFields(const json::object& object, std::string path) : object_(object), path_(std::move(path)) {}

const json::value* JsonFields::Find(std::string_view name) {
  known_.emplace(name);
  if (error_) return nullptr;
  const json::value* value = object_.if_contains(JsonView(name));
  return value == nullptr || value->is_null() ? nullptr : value;
}

void JsonFields::WrongType(std::string_view name, std::string_view expected) {
  Fail(BadRequest(fmt::format("{} must be {}", Path(name), expected), Path(name)));
}

std::optional<bool> JsonFields::Bool(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->get_bool();
  WrongType(name, "true or false");
  return std::nullopt;
}

std::optional<double> JsonFields::Number(std::string_view name, double least, double most) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    WrongType(name, "a number");
    return std::nullopt;
  }
  const double number = value->to_number<double>();
  if (number >= least && number <= most) return number;
  const std::string text = std::isfinite(number) ? fmt::format("{}", number) : "beyond the range of floats";
  Fail(BadRequest(fmt::format("{} is {}; it may be {} to {}", Path(name), text, least, most), Path(name)));
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Integer(std::string_view name, int64_t least, int64_t most) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const bool whole = value->is_int64() || value->is_uint64() ||
                     (value->is_double() && std::floor(value->get_double()) == value->get_double());
  if (!whole) {
    WrongType(name, "a whole number");
    return std::nullopt;
  }
  json::error_code error;
  const int64_t number = value->to_number<int64_t>(error);
  if (!error && number >= least && number <= most) return number;
  // A whole number beyond 64 bits was read as a float, which has other digits.
  const std::string text = error && value->is_double() ? "a number of more than 64 bits" : WriteJson(*value);
  Fail(BadRequest(fmt::format("{} is {}; it may be {} to {}", Path(name), text, least, most), Path(name)));
  return std::nullopt;
}

std::optional<std::string> JsonFields::String(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string(View(value->get_string()));
  WrongType(name, "a string");
  return std::nullopt;
}

const json::array* JsonFields::Array(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->is_array()) return &value->get_array();
  WrongType(name, "an array");
  return nullptr;
}

const json::object* JsonFields::Object(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->is_object()) return &value->get_object();
  WrongType(name, "an object");
  return nullptr;
}

void JsonFields::EachObject(std::string_view name, const json::array& array,
                            const std::function<void(JsonFields&)>& read) {
  for (size_t i = 0; i < array.size() && !failed(); ++i) {
    const std::string path = fmt::format("{}[{}]", Path(name), i);
    const json::object* object = array[i].if_object();
    if (object == nullptr) return Fail(BadRequest(path + " must be an object", path));
    JsonFields fields(*object, path + ".");
    read(fields);
    if (std::optional<ApiError> error = fields.Finish()) Fail(*std::move(error));
  }
}

const json::value* JsonFields::Any(std::string_view name) { return Find(name); }

void JsonFields::Require(std::string_view name) {
  if (Find(name) == nullptr) Fail(BadRequest(fmt::format("{} is missing", Path(name)), Path(name)));
}

void JsonFields::Ignore(std::string_view name) { Find(name); }

void JsonFields::IgnoreAll(std::string_view beginning) { ignored_.emplace_back(beginning); }

void JsonFields::Refuse(std::string_view name, std::string_view why) {
  if (const json::value* value = Find(name); value != nullptr && !AsksForNothing(*value)) RefuseAny(name, why);
}

void JsonFields::RefuseAny(std::string_view name, std::string_view why) {
  if (Find(name) != nullptr) Fail(BadRequest(fmt::format("{} is not supported: {}", Path(name), why), Path(name)));
}

void JsonFields::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

std::optional<ApiError> JsonFields::Finish() {
  for (const auto& [name, value] : object_) {
    if (error_) break;
    const std::string_view key = View(name);
    const bool ignored = std::any_of(ignored_.begin(), ignored_.end(), [&](const std::string& beginning) {
      return key.substr(0, beginning.size()) == beginning;
    });
    if (value.is_null() || ignored || known_.count(key) > 0) continue;
    Fail(BadRequest(fmt::format("the field {} is not supported", Path(key)), Path(key)));
  }
  return error_;
}

}  // namespace gyre::http
