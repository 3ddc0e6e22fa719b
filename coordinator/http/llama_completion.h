// llama.cpp's /completion, and the names of its settings.
#pragma once

#include "boost/json/object.hpp"
#include "coordinator/http/api_context.h"

namespace gyre::http {

Awaitable<void> LlamaCompletion(ApiContext& context, Exchange& exchange);

// The default values of fields that a client leaves out.
boost::json::object DefaultSettings(const Model& model);

}  // namespace gyre::http
