#include "cli/log_setup.h"

#include <csignal>
#include <string>

#include "base/log_output.h"
#include "cli/exit_code.h"
#include "coordinator/http/json_text.h"

namespace gyre {
namespace {

volatile std::sig_atomic_t hangups = 0;
extern "C" void OnHangup(int) { hangups = 1; }

std::string Quote(std::string_view text) {
  std::string out;
  http::AppendQuoted(http::ValidUtf8(text), &out);
  return out;
}

}  // namespace

void CatchHangups() { std::signal(SIGHUP, OnHangup); }

Status StartLog(const LogOptions& options) {
  if (options.format != "text" && options.format != "json") {
    return UsageError("--log-format {}: expected text or json", options.format);
  }
  if (!options.file.empty()) CatchHangups();
  const Status status = SetLogOutput(options.file, options.format == "json" ? &Quote : nullptr);
  return status.ok() ? status : AsUsage(Annotate(status, "--log-file"));
}

bool TakeHangup() {
  if (hangups == 0) return false;
  hangups = 0;
  if (const Status status = ReopenLog(); !status.ok()) Log(LogLevel::kError, "{}", Message(status));
  return true;
}

}  // namespace gyre
