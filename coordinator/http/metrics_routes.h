// The route /metrics, for Prometheus.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router.
void AddMetricsRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
