// Where log lines go, and fields beside their text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/status.h"

namespace gyre {

struct LogField {
  std::string name;
  std::string value;
  bool number = false;  // the value is a number: it stands without quotes
};

// A line with fields for programs. They appear in JSON lines only, so `line` says what people need. Thread-safe.
void LogWith(LogLevel level, const std::string& line, const std::vector<LogField>& fields);

// A text as a JSON string with its quotes; any bytes.
using JsonQuote = std::string (*)(std::string_view text);
// From now on lines go to the end of `file` ("" = stderr): with `quote` as JSON lines with time, level, message and
// fields, else as text. kUnavailable: the file can't be written. Before other threads log.
Status SetLogOutput(const std::string& file, JsonQuote quote);
// Opens the file anew by its name, so that another program may rename it before. Thread-safe. SetLogOutput's error:
// then lines get lost until the next call. OK without a file.
Status ReopenLog();

}  // namespace gyre
