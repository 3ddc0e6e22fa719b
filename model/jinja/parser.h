// Parses tokens to a tree. Grammar: Jinja 3.1's template designer documentation.
#pragma once

#include <string_view>

#include "model/jinja/ast.h"

namespace gyre::jinja {

// Throws Error, with the line.
Body Parse(std::string_view source);

}  // namespace gyre::jinja
