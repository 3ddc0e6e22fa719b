#include "base/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "base/memory.h"

namespace gyre {
namespace {

// When the machine started, in seconds since 1970.
double BootSeconds() {
  std::ifstream in("/proc/stat");
  std::string word;
  double seconds = 0;
  while (in >> word) {
    if (word == "btime" && in >> seconds) return seconds;
  }
  return 0;
}

// When this process started, in seconds since 1970.
double StartSeconds() {
  std::ifstream in("/proc/self/stat");
  std::string line;
  std::getline(in, line);
  // The program's name stands in parentheses and may hold spaces. Behind it the start is the 20th field.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 19; ++i) fields >> skipped;
  double ticks = 0;
  const double boot = BootSeconds();
  const long per_second = sysconf(_SC_CLK_TCK);
  if (!(fields >> ticks) || boot == 0 || per_second <= 0) return 0;
  return boot + ticks / static_cast<double>(per_second);
}

uint64_t VirtualBytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t pages = 0;
  const long page = sysconf(_SC_PAGESIZE);
  return in >> pages && page > 0 ? pages * static_cast<uint64_t>(page) : 0;
}

uint64_t OpenFiles() {
  std::error_code error;
  uint64_t count = 0;
  std::filesystem::directory_iterator at("/proc/self/fd", error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) ++count;
  return count > 0 ? count - 1 : 0;  // without the one that lists them
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats out;
  timespec cpu{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
    out.cpu_seconds = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
  }
  static const double start = StartSeconds();
  out.start_seconds = start;
  out.resident_bytes = ResidentBytes();
  out.virtual_bytes = VirtualBytes();
  out.open_fds = OpenFiles();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) out.max_fds = limit.rlim_cur;
  return out;
}

}  // namespace gyre
