// JSON Schema as a grammar: drafts 4 to 7 and 2020-12 (docs/grammar.md says what is obeyed and what is refused).
#pragma once

#include <string_view>

#include "base/status.h"
#include "coordinator/grammar/grammar.h"
#include "coordinator/grammar/json_tree.h"

namespace gyre::grammar {

struct JsonOptions {
  bool formats = true;     // the known formats are obeyed; else they are annotations
  bool any_order = false;  // members may come in any order; else in the order of "properties", then the others
  bool compact = false;    // no white space
  Bounds bounds;
};

// The JSON texts that a schema takes. kUnimplemented: "KEYWORD at #/POINTER: WHY", what can't be obeyed;
// kInvalidArgument: no JSON, no schema, or no value obeys it; kResourceExhausted: a bound, by name.
StatusOr<Grammar> JsonSchemaGrammar(std::string_view schema, const JsonOptions& options = {});
// The same of a schema that is read already; its bytes are not bounded.
StatusOr<Grammar> JsonSchemaGrammar(JsonTree schema, const JsonOptions& options = {});

// Any JSON object.
StatusOr<Grammar> JsonObjectGrammar(const JsonOptions& options = {});

}  // namespace gyre::grammar
