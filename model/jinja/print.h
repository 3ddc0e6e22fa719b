// Values as text: Python's str and repr, and JSON. The text counts against the budget as it grows, and each value is a
// step: a few lists that hold each other many times would print more text than there is memory.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "model/jinja/value.h"

namespace gyre::jinja {

void AppendText(const Value& v, Budget& budget, std::string* out);  // str(v)
std::string ToText(const Value& v, Budget& budget);
std::string Repr(const Value& v, Budget& budget);

// str() of a float: the shortest text that reads back the same.
std::string FloatToString(double v);

struct JsonOptions {
  std::optional<std::string> indent;  // each item has a line, which begins with one of these for each level
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::pair<std::string, std::string>>
      separators;  // of items, and of a key and its value; none: Python's
};
// json.dumps
std::string DumpJson(const Value& v, const JsonOptions& options, Budget& budget);

}  // namespace gyre::jinja
