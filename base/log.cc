#include "base/log.h"

#include <spdlog/details/file_helper.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/log_output.h"
#include "base/unix_time.h"
#include "fmt/format.h"

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

// The fields of the line that this thread is writing.
thread_local const std::vector<LogField>* line_fields = nullptr;

// Log lines are few, and none may get lost in a crash, so each goes to the operating system at once.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // spdlog::spdlog_ex: the file can't be opened.
  explicit FileSink(const std::string& path) { file_.open(path); }
  void Reopen() {
    std::lock_guard<std::mutex> lock(mutex_);
    file_.reopen(false);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    file_.write(line);
    file_.flush();
  }
  void flush_() override { file_.flush(); }
  spdlog::details::file_helper file_;
};

class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(JsonQuote quote) : quote_(quote) {}
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto level = spdlog::level::to_string_view(message.level);
    std::string line = fmt::format(R"({{"time":"{}","level":"{}","message":{})", UtcText(message.time, 3),
                                   std::string_view(level.data(), level.size()),
                                   quote_({message.payload.data(), message.payload.size()}));
    if (line_fields != nullptr) {
      for (const LogField& f : *line_fields) {
        line += fmt::format(",{}:{}", quote_(f.name), f.number ? f.value : quote_(f.value));
      }
    }
    line += "}\n";
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(quote_); }

 private:
  const JsonQuote quote_;
};

// Set once, before other threads log.
std::shared_ptr<FileSink>& File() {
  static std::shared_ptr<FileSink> file;
  return file;
}

}  // namespace

void SetBeforeLogLine(void (*hook)()) { before_line = hook; }
void SetLogLevel(LogLevel level) { Logger().set_level(Native(level)); }
bool LogEnabled(LogLevel level) { return Logger().should_log(Native(level)); }
void LogLine(LogLevel level, const std::string& line) { LogWith(level, line, {}); }

void LogWith(LogLevel level, const std::string& line, const std::vector<LogField>& fields) {
  if (!LogEnabled(level)) return;
  if (void (*hook)() = before_line; hook != nullptr) hook();
  line_fields = &fields;
  Logger().log(Native(level), "{}", line);
  line_fields = nullptr;
}

Status SetLogOutput(const std::string& file, JsonQuote quote) {
  try {
    spdlog::sink_ptr sink;
    if (!file.empty()) {
      File() = std::make_shared<FileSink>(file);
      sink = File();
    } else if (quote != nullptr) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    }
    if (sink != nullptr) Logger().sinks() = {sink};
    if (quote != nullptr) {
      Logger().set_formatter(std::make_unique<JsonFormatter>(quote));
    } else if (!file.empty()) {
      Logger().set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
    }
  } catch (const spdlog::spdlog_ex& e) {
    return Unavailable("the log {} can't be written: {}", file, e.what());
  }
  return absl::OkStatus();
}

Status ReopenLog() {
  if (File() == nullptr) return absl::OkStatus();
  try {
    File()->Reopen();
  } catch (const spdlog::spdlog_ex& e) {
    return Unavailable("the log can't be written: {}", e.what());
  }
  return absl::OkStatus();
}

}  // namespace gyre
