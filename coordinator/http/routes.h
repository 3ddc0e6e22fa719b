// All routes of `gyre serve`.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router.
void AddAllRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
