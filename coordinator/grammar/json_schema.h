// JSON Schema as a grammar: drafts 4 to 7 and 2020-12 (docs/grammar.md says what is obeyed and what is refused).
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "base/status.h"
#include "coordinator/grammar/grammar.h"
#include "coordinator/grammar/json_text.h"
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

// How a call of a tool has its arguments: as a JSON object, or each by its name: KEY name VALUE value VALUE_END.
struct ArgumentsForm {
  bool object = true;  // JSON; the rest but `close` and `style` is for the others
  ExprId key = kEpsilon, value = kEpsilon, value_end = kEpsilon, separator = kEpsilon;
  ExprId close = kEpsilon;  // behind the last one; not empty
  std::string name_end;     // no name has it in it
  bool bare_names = false;  // names have letters, digits and _-.:/ alone
  JsonStyle style;          // of values; `avoid`: what ends one
  // Values are texts as they stand, or JSON: texts if the parameter is one of these, or if the value says so with
  // true"> before it and false"> before JSON. Of other parameters a text that is no JSON is a text too.
  bool texts = false, says_text = false;
  std::set<std::string, std::less<>> text_names;
  bool drops_lines = false;  // a line feed at either end of a text is not read
};

// The arguments of a call that obey a tool's schema, with `close`: the parameters in any order, each once; in the
// schema's order if there are more than 64. The grammar gets the rules. Errors as above, and kUnimplemented: a name
// that the form can't write.
StatusOr<ExprId> AddArguments(JsonTree schema, const ArgumentsForm& form, Grammar* grammar);

// A whole value that obeys a schema, as a part of a grammar, which gets the rules.
StatusOr<ExprId> AddValue(JsonTree schema, Grammar* grammar);

}  // namespace gyre::grammar
