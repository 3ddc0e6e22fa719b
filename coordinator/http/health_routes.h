// GET /health: the process is alive. GET /ready: it serves requests.
#pragma once

#include <string>

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router.
void AddHealthRoutes(Router& router, ApiContext& context);

// While the model loads or the coordinator stands by: /health answers, and everything else is 503: /ready
// with `reason`, the others with the sentence `why`.
void AddLoadingRoutes(Router& router, const std::string& reason, const std::string& why);

}  // namespace gyre::http
