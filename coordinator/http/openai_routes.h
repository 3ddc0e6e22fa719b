// The handlers behind AddOpenAiRoutes.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/exchange.h"

namespace gyre::http {

Awaitable<void> ChatCompletions(const ApiContext& context, Exchange& exchange);
Awaitable<void> Completions(const ApiContext& context, Exchange& exchange);
Awaitable<void> Responses(const ApiContext& context, Exchange& exchange);
// GET and DELETE of a response that is kept, and GET of its input.
Awaitable<void> ShowResponse(const ApiContext& context, Exchange& exchange);
Awaitable<void> DeleteResponse(const ApiContext& context, Exchange& exchange);
Awaitable<void> Embeddings(const ApiContext& context, Exchange& exchange);
Awaitable<void> ListModels(const ApiContext& context, Exchange& exchange);
Awaitable<void> ShowModel(const ApiContext& context, Exchange& exchange);

}  // namespace gyre::http
