// The routes of ollama's API.
#pragma once

#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"

namespace gyre::http {

void AddOllamaRoutes(Router& router, ApiContext& context);

}  // namespace gyre::http
