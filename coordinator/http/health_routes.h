// GET /health: the process is alive. GET /ready: it serves requests.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router.
void AddHealthRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
