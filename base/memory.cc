#include "base/memory.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace gyre {

namespace {

// The value of a line "KEY: N kB"; 0: there is none.
uint64_t BytesOf(const char* file, const std::string& wanted) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, wanted.size(), wanted) == 0)
      return std::strtoull(line.c_str() + wanted.size(), nullptr, 10) << 10;
  }
  return 0;
}

}  // namespace

uint64_t AvailableMemory() { return BytesOf("/proc/meminfo", "MemAvailable:"); }
uint64_t PrivateBytes() { return BytesOf("/proc/self/status", "RssAnon:"); }

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace gyre
