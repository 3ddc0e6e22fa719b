// llama.cpp's /completion, and the names of its settings.
#pragma once

#include <string>
#include <vector>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "coordinator/http/api_context.h"
#include "coordinator/http/json_fields.h"

namespace gyre::http {

Awaitable<void> LlamaCompletion(ApiContext& context, Exchange& exchange);

// The default values of fields that a client leaves out.
boost::json::object DefaultSettings();

// An array of token ids; an error goes to `fields`.
void ReadIds(const boost::json::array& array, const std::string& name, JsonFields* fields, std::vector<TokenId>* out);

}  // namespace gyre::http
