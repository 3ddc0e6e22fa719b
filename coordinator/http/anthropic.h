// Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens. Shapes: its public API reference, version
// 2023-06-01.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router.
void AddAnthropicRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
