// Reads what a request says of speculation (docs/speculation.md).
#pragma once

#include "coordinator/http/json_fields.h"
#include "coordinator/service/service.h"

namespace gyre::http {

// llama.cpp's fields (speculative.n_max, .n_min, .p_min).
void ReadSpeculation(JsonFields& fields, Question* question);

// OpenAI's: {"type": "content", "content": a text or an array of text parts}.
void ReadPrediction(JsonFields& fields, Question* question);

}  // namespace gyre::http
