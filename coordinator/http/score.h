// The route POST /v1/score (docs/scoring.md).
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router's server.
void AddScoreRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
