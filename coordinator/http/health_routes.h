// GET /health: the process is alive. GET /ready: it serves requests.
#pragma once

#include <string>

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router.
void AddHealthRoutes(Router& router, ApiContext& context);

// For the time while the model loads or the coordinator stands by: /health answers, /ready is 503 with `reason`, and
// all other paths are 503 with `why`.
void AddLoadingRoutes(Router& router, const std::string& reason, const std::string& why);

}  // namespace gyre::http
