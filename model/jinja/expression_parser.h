// Parses expressions from tokens. Each function throws Error, with the line.
#pragma once

#include "model/jinja/token_cursor.h"

namespace gyre::jinja {

ExprPtr ParseExpression(TokenCursor& c);
// Parses one expression, or several with commas between, as a tuple. Without `conditions` an `if` ends it.
ExprPtr ParseTuple(TokenCursor& c, bool conditions = true);
// Parses the filter whose name comes next, applied to e; or all of "| filter" and "is test" that follow e.
ExprPtr ParseOneFilter(TokenCursor& c, ExprPtr e);
ExprPtr ParseFilters(TokenCursor& c, ExprPtr e);

}  // namespace gyre::jinja
