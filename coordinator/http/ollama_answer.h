// ollama's /api/chat and /api/generate, and what all its routes share.
#pragma once

#include <optional>
#include <string>

#include "coordinator/http/api_context.h"
#include "coordinator/http/json_fields.h"

namespace gyre::http {

Awaitable<void> OllamaChat(const ApiContext& context, Exchange& exchange);
Awaitable<void> OllamaGenerate(const ApiContext& context, Exchange& exchange);

// The field `model` as it was asked for; there a name may have the tag ":latest". 404.
std::string ReadOllamaModel(JsonFields& fields, const ApiContext& context);
// The adapter that such a name means; 0: none.
uint32_t OllamaAdapter(const ApiContext& context, const std::string& name);
// A model's name as ollama lists it: with a tag.
std::string OllamaName(const std::string& name);

}  // namespace gyre::http
