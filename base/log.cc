#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>

namespace gyre {
namespace {

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("gyre", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%^%l%$ %H:%M:%S.%e %v");
    const char* level = std::getenv("GYRE_LOG");
    made->set_level(level != nullptr ? spdlog::level::from_str(level) : spdlog::level::warn);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum Native(LogLevel level) { return static_cast<spdlog::level::level_enum>(level); }

std::atomic<void (*)()> before_line{nullptr};

}  // namespace

void SetBeforeLogLine(void (*hook)()) { before_line = hook; }
void SetLogLevel(LogLevel level) { Logger().set_level(Native(level)); }
bool LogEnabled(LogLevel level) { return Logger().should_log(Native(level)); }
void LogLine(LogLevel level, const std::string& line) {
  if (void (*hook)() = before_line; hook != nullptr) hook();
  Logger().log(Native(level), "{}", line);
}

}  // namespace gyre
