// GET /v1/cluster, its events, and POST /v1/cluster/resize, drain, undrain and remove: for
// administrators.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// Adds nothing if the context has no cluster. The context outlives the router.
void AddClusterRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
