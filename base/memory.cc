#include "base/memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace gyre {

uint64_t AvailableMemory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  for (uint64_t kib = 0; meminfo >> key >> kib; meminfo.ignore(64, '\n')) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace gyre
