// The threads of this process, as the system calls them.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace gyre::testing {

// How many have a name that begins so. A thread is called as whoever started it.
inline int ThreadsCalled(const std::string& name) {
  int n = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    n += comm.rfind(name, 0) == 0;
  }
  return n;
}

}  // namespace gyre::testing
