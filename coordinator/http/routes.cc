#include "coordinator/http/routes.h"

#include "coordinator/http/anthropic.h"
#include "coordinator/http/batch_routes.h"
#include "coordinator/http/cluster_routes.h"
#include "coordinator/http/health_routes.h"
#include "coordinator/http/llama.h"
#include "coordinator/http/metrics_routes.h"
#include "coordinator/http/ollama.h"
#include "coordinator/http/openai.h"
#include "coordinator/http/page_routes.h"
#include "coordinator/http/rerank.h"
#include "coordinator/http/score.h"

namespace gyre::http {

void AddAllRoutes(Router& router, ApiContext& context) {
  AddHealthRoutes(router, context);
  AddClusterRoutes(router, context);
  AddMetricsRoutes(router, context);
  AddOpenAiRoutes(router, context);
  AddScoreRoutes(router, context);
  AddRerankRoutes(router, context);
  AddBatchRoutes(router, context);
  AddAnthropicRoutes(router, context);
  AddLlamaRoutes(router, context);
  AddOllamaRoutes(router, context);
  AddPageRoutes(router);
}

}  // namespace gyre::http
