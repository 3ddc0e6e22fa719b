// The threads of this process, by their names in the system.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace gyre::testing {

// The number of threads whose name begins so. A thread inherits the name of the thread that started it.
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
