// The routes /v1/files and /v1/batches of OpenAI's API (docs/scoring.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// One part of a body of the type multipart/form-data (RFC 7578).
struct FormPart {
  std::string name, filename;
  std::string_view data;  // in the body
};
// kInvalidArgument: it is no such body, or has more than 16 parts.
StatusOr<std::vector<FormPart>> ReadForm(std::string_view content_type, std::string_view body);

// Does nothing where the context has no batches. The context outlives the router's server.
void AddBatchRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
