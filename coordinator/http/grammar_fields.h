// Fields that ask for a text of a grammar, under the names that servers have for them.
#pragma once

#include <string_view>

#include "boost/json/object.hpp"
#include "coordinator/http/json_fields.h"
#include "coordinator/service/service.h"

namespace gyre::http {

// The field `name` as the form of the answer: {"type": "text" | "json_object" | "json_schema" | "regex", ...}, with the
// schema as OpenAI's servers have it ("json_schema": {"schema": ...}) or beside the type. 400: malformed, or a second
// grammar.
void ReadTextFormat(JsonFields& fields, std::string_view name, Question* question);

// llama.cpp's fields (grammar, json_schema), vLLM's (structured_outputs, guided_*) and our own (jump_ahead).
void ReadGrammars(JsonFields& fields, Question* question);

// Ollama's: "json", or a schema.
void ReadOllamaFormat(JsonFields& fields, Question* question);

}  // namespace gyre::http
