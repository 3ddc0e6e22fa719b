// Bytes as JSON text, which must be UTF-8.
#pragma once

#include <string>
#include <string_view>

#include "boost/json/string_view.hpp"

namespace gyre::http {

inline std::string_view View(boost::json::string_view text) { return {text.data(), text.size()}; }

// Each byte that is no part of a valid character becomes U+FFFD.
std::string ValidUtf8(std::string_view bytes);

// The text as a JSON string, quotes around it, behind `out`. REQUIRES: valid UTF-8.
void AppendQuoted(std::string_view text, std::string* out);

// One event of a stream: "data: JSON\n\n", with "event: NAME\n" before it unless `name` is empty.
std::string SseEvent(std::string_view json, std::string_view name = {});

}  // namespace gyre::http
