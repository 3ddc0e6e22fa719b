// The processor time, memory and open files of this process, as the operating system reports them.
#pragma once

#include <cstdint>

namespace gyre {

// 0 = unknown.
struct ProcessStats {
  double cpu_seconds = 0;    // of all threads, user and system
  double start_seconds = 0;  // since 1970
  uint64_t resident_bytes = 0, virtual_bytes = 0;
  uint64_t open_fds = 0, max_fds = 0;
};

// Reads a few files of /proc: some 100 microseconds. Thread-safe.
ProcessStats ReadProcessStats();

}  // namespace gyre
