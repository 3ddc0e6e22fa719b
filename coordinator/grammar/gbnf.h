// Grammars in the form of llama.cpp (GBNF).
#pragma once

#include <string_view>

#include "base/status.h"
#include "coordinator/grammar/grammar.h"

namespace gyre::grammar {

// NAME ::= alternatives of rows of "texts", [classes], . , names and (groups), each with ?, *, +, {n}, {n,}, {,m} or
// {n,m}; # begins a comment. The text begins with the rule `root`. kInvalidArgument: what is wrong and in which line;
// and the errors of Grammar::Finish.
StatusOr<Grammar> GbnfGrammar(std::string_view text, const Bounds& bounds = {});

}  // namespace gyre::grammar
