// Filters, tests, methods and global functions.
#pragma once

#include <string>

#include "model/jinja/interpreter.h"

namespace gyre::jinja {

// FindFilter and FindTest return null if there is none of that name.
using Filter = Value (*)(Interpreter&, const Value&, Arguments&);
using Test = bool (*)(Interpreter&, const Value&, Arguments&);
Filter FindFilter(const std::string& name);
Test FindTest(const std::string& name);
// A method of a string, list, dict or loop, bound to it; undefined if there is none.
Value FindMethod(const Value& v, const std::string& name);
void AddGlobals(Scope* scope);

// The filter join, which is a method too.
Value Join(Interpreter& i, const Value& v, Arguments& a);
// printf-style: %s %r %d %i %x %o %f %e %g %%, with width and precision. The text counts against the budget.
std::string Format(Interpreter& i, const std::string& format, const std::vector<Value>& values);

}  // namespace gyre::jinja
