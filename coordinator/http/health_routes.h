// GET /health: the process is alive. GET /ready: it serves requests.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router.
void AddHealthRoutes(Router& router, ApiContext& context);

// While the model loads: /health answers, and everything else is 503.
void AddLoadingRoutes(Router& router);

}  // namespace gyre::http
