// A text out of a list.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/grammar/grammar.h"

namespace gyre::grammar {

// kInvalidArgument: there is none.
StatusOr<Grammar> ChoicesGrammar(const std::vector<std::string>& choices, const Bounds& bounds = {});

}  // namespace gyre::grammar
