// Calls of tools in a model's answer as a grammar: what the model's family writes around a call (model/tool_format.h),
// and arguments that obey the tools' schemas.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coordinator/grammar/grammar.h"
#include "coordinator/grammar/source.h"
#include "model/answer_format.h"

namespace gyre::grammar {

struct ToolCalls {
  struct Tool {  // none: the answer has no calls
    std::string name;
    std::string parameters;  // a JSON Schema
    bool strict = false;     // or, unless a call is required, any arguments are allowed
  };
  std::vector<Tool> tools;
  bool required = false;  // the answer is calls alone; else any text, in which a call begins with the family's marker
  bool parallel = true;   // more than one call; else the answer ends with the first one
  // Without `required`: what the answer is if it has no call: any JSON object or one by a schema. nullopt: any text.
  std::optional<Source> answer;
};

// Whether a grammar's texts are JSON values.
inline bool IsJson(const Source& source) {
  return source.kind == SourceKind::kJsonObject || source.kind == SourceKind::kJsonSchema;
}

// Calls in the form that an answer has. Markers that are control tokens stand as such (TokenTrie). kUnimplemented: the
// model's template has no calls that are known.
StatusOr<Source> ToolCallSource(const ToolCalls& calls, const AnswerFormat& format);

// REQUIRES: nothing of the text, which may come from outside. Errors: those of JsonSchemaGrammar, with the tool's name;
// kInvalidArgument: it is no text of ToolCallSource.
StatusOr<Grammar> ToolCallGrammar(std::string_view source, const Bounds& bounds = {});

}  // namespace gyre::grammar
