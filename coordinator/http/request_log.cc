#include "coordinator/http/request_log.h"

#include <chrono>

#include "base/log_output.h"
#include "coordinator/http/json_text.h"
#include "fmt/core.h"

namespace gyre::http {

std::string ForLog(std::string_view text) {
  constexpr size_t kLongest = 120;
  std::string out = ValidUtf8(text.substr(0, kLongest));
  for (char& c : out) c = static_cast<unsigned char>(c) <= 0x20 || c == '\x7F' ? '?' : c;
  return out;
}

void LogRequest(const RequestRecord& r) {
  if (!LogEnabled(LogLevel::kInfo)) return;
  std::string more;
  if (!r.caller.empty()) more += " caller " + r.caller;
  if (r.prompt_tokens + r.generated_tokens > 0) {
    more += fmt::format(" tokens {}+{}", r.prompt_tokens, r.generated_tokens);
  }
  if (r.gone) more += " client gone";
  const double ms = std::chrono::duration<double, std::milli>(r.took).count();
  const std::string method = r.method.empty() ? "-" : ForLog(r.method), path = r.path.empty() ? "-" : ForLog(r.path);
  const std::string line =
      fmt::format("http {} {} {} {} {:.1f} ms {} bytes{}", r.id, method, path, r.status, ms, r.bytes, more);
  LogWith(LogLevel::kInfo, line,
          {{"request", r.id},
           {"method", method},
           {"path", path},
           {"caller", r.caller},
           {"status", std::to_string(r.status), true},
           {"milliseconds", fmt::format("{:.1f}", ms), true},
           {"bytes", std::to_string(r.bytes), true},
           {"prompt_tokens", std::to_string(r.prompt_tokens), true},
           {"generated_tokens", std::to_string(r.generated_tokens), true}});
}

}  // namespace gyre::http
