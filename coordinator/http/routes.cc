#include "coordinator/http/routes.h"

#include "coordinator/http/anthropic.h"
#include "coordinator/http/cluster_routes.h"
#include "coordinator/http/health_routes.h"
#include "coordinator/http/llama.h"

namespace gyre::http {

void AddAllRoutes(Router& router, ApiContext& context) {
  AddHealthRoutes(router, context);
  AddClusterRoutes(router, context);
}

}  // namespace gyre::http
