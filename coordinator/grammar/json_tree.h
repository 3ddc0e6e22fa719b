// A JSON value that keeps the order of members and the text of numbers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coordinator/grammar/decimal.h"

namespace gyre::grammar {

enum class JsonKind : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

struct JsonMember;

struct JsonTree {
  JsonKind kind = JsonKind::kNull;
  std::string text;  // of a string; of a number as it was written
  Decimal number;
  std::vector<JsonTree> items;
  std::vector<JsonMember> members;

  bool Is(JsonKind k) const { return kind == k; }
  bool IsBool() const { return kind == JsonKind::kTrue || kind == JsonKind::kFalse; }
  // nullptr: it is no object, or has no such member. Of equal names the last counts.
  const JsonTree* Find(std::string_view name) const;
};

struct JsonMember {
  std::string first;  // the name
  JsonTree second;
};

// Equal values, as JSON Schema says: numbers by their value, objects whatever the order.
bool Equal(const JsonTree& a, const JsonTree& b);

// kInvalidArgument: it is not JSON; kResourceExhausted: it is deeper than `nesting`, or has a number out of bounds.
StatusOr<JsonTree> ReadJson(std::string_view text, size_t nesting);

}  // namespace gyre::grammar
