// Log lines on stderr. Level: GYRE_LOG=trace|debug|info|warn|error (default warn). Thread-safe.
#pragma once

#include <string>
#include <utility>

#include "fmt/core.h"

namespace gyre {

enum class LogLevel : int { kTrace = 0, kDebug = 1, kInfo = 2, kWarn = 3, kError = 4 };

void SetLogLevel(LogLevel level);
// Sets a function that is called before each line is written, on the thread that writes it; null = none. A progress bar
// uses it to clear its own line.
void SetBeforeLogLine(void (*hook)());
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, const std::string& line);

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(level)) LogLine(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace gyre
