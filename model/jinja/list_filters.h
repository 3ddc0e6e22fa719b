// Filters for lists and dicts; filters.cc has the table of their names.
#pragma once

#include "model/jinja/interpreter.h"

namespace gyre::jinja {

Value Length(Interpreter& i, const Value& v, Arguments& a);
Value FirstItem(Interpreter& i, const Value& v, Arguments& a);
Value LastItem(Interpreter& i, const Value& v, Arguments& a);
Value Min(Interpreter& i, const Value& v, Arguments& a);
Value Max(Interpreter& i, const Value& v, Arguments& a);
Value Sum(Interpreter& i, const Value& v, Arguments& a);
Value Sort(Interpreter& i, const Value& v, Arguments& a);
Value DictSort(Interpreter& i, const Value& v, Arguments& a);
Value Reverse(Interpreter& i, const Value& v, Arguments& a);
Value Unique(Interpreter& i, const Value& v, Arguments& a);
Value Map(Interpreter& i, const Value& v, Arguments& a);
Value Select(Interpreter& i, const Value& v, Arguments& a);
Value Reject(Interpreter& i, const Value& v, Arguments& a);
Value SelectAttr(Interpreter& i, const Value& v, Arguments& a);
Value RejectAttr(Interpreter& i, const Value& v, Arguments& a);
Value DictItems(Interpreter& i, const Value& v, Arguments& a);
Value GroupBy(Interpreter& i, const Value& v, Arguments& a);
Value Batch(Interpreter& i, const Value& v, Arguments& a);
Value Slice(Interpreter& i, const Value& v, Arguments& a);

}  // namespace gyre::jinja
