// The destination of log lines, and fields beside their text.
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

// A line with fields for programs. The fields appear in JSON lines only, so `line` must tell people everything.
void LogWith(LogLevel level, const std::string& line, const std::vector<LogField>& fields);

// Returns a text as a JSON string with its quotes. The text may have any bytes.
using JsonQuote = std::string (*)(std::string_view text);
// Sends all later lines to the end of `file` ("" = stderr): with `quote` as JSON lines with time, level, message and
// fields, else as text. kUnavailable: the file can't be written. Call it before other threads log.
Status SetLogOutput(const std::string& file, JsonQuote quote);
// Opens the file anew by its name, so that another program may rename it before. Thread-safe. On SetLogOutput's error
// lines get lost until the next call. OK without a file.
Status ReopenLog();

}  // namespace gyre
