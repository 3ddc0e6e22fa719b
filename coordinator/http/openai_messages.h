// Conversations in the form of OpenAI's clients.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "boost/json/array.hpp"
#include "coordinator/http/json_fields.h"

namespace gyre::http {

// The text of the field `name`: a string, or an array of parts of the type `part` ("text", "input_text", ...), whose
// texts are joined. nullopt: absent, or an error.
std::optional<std::string> ReadContent(JsonFields& fields, std::string_view name,
                                       std::initializer_list<std::string_view> parts);

// "system", "user" or "assistant"; "developer" means "system". "": an error.
std::string ReadRole(JsonFields& fields);

// The field "messages" in the form of chat templates: role and content, name and reasoning_content if present.
boost::json::array ReadMessages(JsonFields& fields);

}  // namespace gyre::http
