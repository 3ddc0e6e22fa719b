#include "base/unix_time.h"

#include <ctime>

#include "fmt/format.h"

namespace gyre {
namespace {

template <typename Unit>
int64_t Since1970(std::chrono::system_clock::time_point time) {
  return std::chrono::floor<Unit>(time.time_since_epoch()).count();
}

}  // namespace

int64_t UnixSeconds() { return Since1970<std::chrono::seconds>(std::chrono::system_clock::now()); }
int64_t UnixMillis() { return Since1970<std::chrono::milliseconds>(std::chrono::system_clock::now()); }

std::string UtcText(std::chrono::system_clock::time_point time, int digits) {
  const std::time_t seconds = Since1970<std::chrono::seconds>(time);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::string out = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                                utc.tm_hour, utc.tm_min, utc.tm_sec);
  if (digits > 0) {
    const int64_t micros = Since1970<std::chrono::microseconds>(time) - seconds * 1000000;
    out += fmt::format(".{:06}", micros).substr(0, static_cast<size_t>(digits) + 1);
  }
  return out + "Z";
}

}  // namespace gyre
