// Bytes as JSON text, which must be UTF-8.
#pragma once

#include <string>
#include <string_view>

#include "boost/json/string_view.hpp"
#include "boost/json/value.hpp"

namespace gyre::http {

inline std::string_view View(boost::json::string_view text) { return {text.data(), text.size()}; }
inline boost::json::string_view JsonView(std::string_view text) { return {text.data(), text.size()}; }

// Replaces each byte that is no part of a valid character by U+FFFD.
std::string ValidUtf8(std::string_view bytes);

// Appends the text as a JSON string, with quotes, to `out`. REQUIRES: valid UTF-8.
void AppendQuoted(std::string_view text, std::string* out);

// The value as JSON. A number has the fewest digits that give the same value: 0.8, never 8E-1; null if it isn't finite.
std::string WriteJson(const boost::json::value& value);
void AppendJson(const boost::json::value& value, std::string* out);
// The double that prints with the float's own digits: 0.8 for 0.8f, which is 0.800000011920929 otherwise.
double DecimalOf(float value);

// One event of a stream: "data: JSON\n\n", with "event: NAME\n" before it unless `name` is empty.
std::string SseEvent(std::string_view json, std::string_view name = {});

}  // namespace gyre::http
