#include "base/memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

namespace gyre {
namespace {

// The value of a line "KEY: N kB"; 0 if there is no such line.
uint64_t BytesOf(const char* file, const std::string& wanted) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, wanted.size(), wanted) == 0)
      return std::strtoull(line.c_str() + wanted.size(), nullptr, 10) << 10;
  }
  return 0;
}

// nullopt: there is no such file, or no number in it ("max").
std::optional<uint64_t> NumberIn(const std::string& file) {
  std::ifstream in(file);
  uint64_t number = 0;
  if (!(in >> number)) return std::nullopt;
  return number;
}

// Pages of files, which the system frees when somebody needs memory.
uint64_t FilePages(const std::string& stat, const std::string& prefix) {
  std::ifstream in(stat);
  uint64_t sum = 0;
  std::string key;
  for (uint64_t bytes = 0; in >> key >> bytes;) {
    if (key == prefix + "inactive_file" || key == prefix + "active_file") sum += bytes;
  }
  return sum;
}

}  // namespace

uint64_t RoomInGroups(const std::string& root, const std::string& own) {
  uint64_t room = UINT64_MAX;
  std::ifstream in(own);
  for (std::string line; std::getline(in, line);) {
    // "0::/PATH" in version 2, "4:memory:/PATH" in version 1.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controller = line.substr(first + 1, second - first - 1);
    const bool old = controller == "memory";
    if (!old && !controller.empty()) continue;
    const std::string base = old ? root + "/memory" : root;
    // A group's limit holds for its subgroups too, and a container may show its own group as the root.
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      const std::string group = base + path;
      const auto limit = NumberIn(group + (old ? "/memory.limit_in_bytes" : "/memory.max"));
      const auto used = NumberIn(group + (old ? "/memory.usage_in_bytes" : "/memory.current"));
      if (limit && used) {
        const uint64_t kept = *used - std::min(*used, FilePages(group + "/memory.stat", old ? "total_" : ""));
        room = std::min(room, *limit > kept ? *limit - kept : 1);
      }
      if (path.find('/') == std::string::npos) break;
    }
  }
  return room;
}

uint64_t AvailableMemory() { return std::min(BytesOf("/proc/meminfo", "MemAvailable:"), RoomInGroups()); }
uint64_t PrivateBytes() { return BytesOf("/proc/self/status", "RssAnon:"); }

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace gyre
