// Linux affinity masks: which processors the calling thread may use. Includes only the standard library and system
// headers.
#pragma once

#include <sched.h>

#include <cstddef>
#include <span>
#include <vector>

namespace gyre {

inline constexpr int kMaxProcessors = 4096;

// The processors that the calling thread may use, rising; threads that it starts inherit them. Empty if the system does
// not tell.
inline std::vector<int> AffinityMask() {
  cpu_set_t* mask = CPU_ALLOC(kMaxProcessors);
  if (mask == nullptr) return {};
  const size_t size = CPU_ALLOC_SIZE(kMaxProcessors);
  CPU_ZERO_S(size, mask);
  std::vector<int> out;
  if (sched_getaffinity(0, size, mask) == 0) {
    for (int cpu = 0; cpu < kMaxProcessors; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), size, mask)) out.push_back(cpu);
    }
  }
  CPU_FREE(mask);
  return out;
}

// Restricts the calling thread to these processors. Returns false if the system refuses; then nothing changes.
// REQUIRES: each is in [0, kMaxProcessors).
inline bool PinThread(std::span<const int> cpus) {
  cpu_set_t* mask = CPU_ALLOC(kMaxProcessors);
  if (mask == nullptr) return false;
  const size_t size = CPU_ALLOC_SIZE(kMaxProcessors);
  CPU_ZERO_S(size, mask);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), size, mask);
  const bool done = sched_setaffinity(0, size, mask) == 0;
  CPU_FREE(mask);
  return done;
}

}  // namespace gyre
