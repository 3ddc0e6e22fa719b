// The formats of JSON Schema that are obeyed; others are annotations.
#pragma once

#include <string_view>

#include "base/status.h"
#include "coordinator/grammar/code_points.h"
#include "coordinator/grammar/expressions.h"

namespace gyre::grammar {

// date-time, date, time, duration, email, hostname, ipv4, ipv6, uri, uuid.
bool IsKnownFormat(std::string_view name);
// The texts of a known format. Source: RFC 3339, RFC 5321, RFC 1123, RFC 2673, RFC 4291, RFC 3986, RFC 4122.
StatusOr<ExprId> Format(Expressions* e, std::string_view name, Writing writing);

}  // namespace gyre::grammar
