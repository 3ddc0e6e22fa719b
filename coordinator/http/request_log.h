// One log line for each request.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/http/server_options.h"

namespace gyre::http {

// An unauthenticated peer's text without control characters and not too long.
std::string ForLog(std::string_view text);

void LogRequest(const RequestRecord& record);

}  // namespace gyre::http
