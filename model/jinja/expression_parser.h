// Expressions from tokens. Each throws Error, with the line.
#pragma once

#include "model/jinja/token_cursor.h"

namespace gyre::jinja {

ExprPtr ParseExpression(TokenCursor& c);
// One expression, or several with commas between, as a tuple. Without `conditions` an `if` ends it.
ExprPtr ParseTuple(TokenCursor& c, bool conditions = true);
// The filter whose name comes next, applied to e; and all of "| filter" and "is test" that follow e.
ExprPtr ParseOneFilter(TokenCursor& c, ExprPtr e);
ExprPtr ParseFilters(TokenCursor& c, ExprPtr e);

}  // namespace gyre::jinja
