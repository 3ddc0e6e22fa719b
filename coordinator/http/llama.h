// The routes that clients of llama.cpp's server use: /completion, /tokenize, /detokenize, /apply-template, /props,
// /slots. Shapes: tools/server/README.md of llama.cpp, 2026.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// The context outlives the router.
void AddLlamaRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
