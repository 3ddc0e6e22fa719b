// A grammar as a request names it: the form that it is written in, and its text.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "coordinator/grammar/grammar.h"

namespace gyre::grammar {

// The numbers never change.
enum class SourceKind : uint8_t {
  kJsonObject = 1,  // any JSON object; no text
  kJsonSchema = 2,
  kRegex = 3,
  kGbnf = 4,
  kChoices = 5,    // a JSON array of strings
  kToolCalls = 6,  // of ToolCallSource
};

struct Source {
  SourceKind kind = SourceKind::kJsonObject;
  std::string text;
  bool operator==(const Source&) const = default;
};

// compact: JSON has no white space. The errors of the readers (json_schema.h, regex.h, gbnf.h, choices.h).
StatusOr<Grammar> ReadSource(const Source& source, bool compact = false, const Bounds& bounds = {});

}  // namespace gyre::grammar
