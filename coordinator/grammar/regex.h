// Regular expressions of ECMA-262 with the flag u, as expressions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "coordinator/grammar/code_points.h"
#include "coordinator/grammar/grammar.h"

namespace gyre::grammar {

struct PatternOptions {
  bool search = false;   // the pattern may match a part of the text, as in JSON Schema; else it matches the whole
  bool lenient = false;  // takes escapes and brackets that only patterns without the flag u may have
  Writing writing = Writing::kPlain;
};

// The texts that the pattern matches. kInvalidArgument: "not a regular expression", with the place; kUnimplemented:
// what has no finite automaton, or none yet: look-around, back references, word boundaries, scripts of Unicode.
StatusOr<ExprId> ReadPattern(Expressions* e, std::string_view pattern, const PatternOptions& options);

// The grammar of a pattern that matches the whole text. Errors: as ReadPattern, and those of Grammar::Finish.
StatusOr<Grammar> RegexGrammar(std::string_view pattern, const Bounds& bounds = {});

}  // namespace gyre::grammar
