#include "coordinator/http/routes.h"

#include "coordinator/http/health_routes.h"

namespace gyre::http {

void AddAllRoutes(Router& router, ApiContext& context) { AddHealthRoutes(router, context); }

}  // namespace gyre::http
