// Requests to an OpenAI-compatible server, made from the flags of run and chat.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "cli/commands.h"
#include "client/api_client.h"

namespace gyre {

// Options of an HTTP client. api_key "": OPENAI_API_KEY of the environment. timeout: seconds without a byte.
StatusOr<HttpClientOptions> HttpClientOptionsOf(const std::string& api_key, const std::string& ca_file, double timeout);
StatusOr<std::unique_ptr<ApiClient>> OpenApi(const TargetOptions& options);
// The fields of a request that the user gave flags for; the server has its own defaults for the others. Usage error: a
// flag that the API has no field for.
StatusOr<boost::json::object> ApiFields(const GenerateOptions& options);
// The usage for DescribeUsage; nullopt: the server did not report it.
std::optional<Usage> UsageOf(const ApiEnd& end);

}  // namespace gyre
