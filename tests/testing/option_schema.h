// The sampling options as docs/openapi.json describes them.
#pragma once

#include <algorithm>
#include <cstdint>

#include <boost/json.hpp>

#include "coordinator/engine/sampling_options.h"

namespace gyre::testing {

inline const char* TypeOf(const SamplingOption& option) {
  return std::holds_alternative<int SamplingParams::*>(option.field) ? "integer" : "number";
}

// The schema of an option in a request.
inline boost::json::object RequestSchema(const SamplingOption& option) {
  const double least = option.has_foreign ? std::min(option.least, option.foreign) : option.least;
  const bool excluded = option.above_least && !(option.has_foreign && option.foreign == option.least);
  boost::json::object out{{"type", boost::json::array{TypeOf(option), "null"}}};
  out[excluded ? "exclusiveMinimum" : "minimum"] = static_cast<int64_t>(least);
  if (option.most < INT32_MAX) out["maximum"] = static_cast<int64_t>(option.most);
  return out;
}

}  // namespace gyre::testing
