// The routes of OpenAI's API: /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/models.
// docs/api.md lists the differences from OpenAI's own servers.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router.
void AddOpenAiRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
