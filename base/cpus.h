// The processors that a process may use, and those that its threads run on. Call these functions before any thread is
// pinned: the affinity mask is that of the calling thread.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace gyre {

// One processor of each physical core in the affinity mask, sorted by NUMA node. A core's second hardware thread adds
// nothing to streams and products that already saturate the core. Never empty.
std::vector<int> UsableCores();
// The number of UsableCores, limited by the CPU quotas of the control groups (cgroup v2).
int DefaultThreads();
// Whether two processors are hardware threads of one core.
bool SameCore(int a, int b);
// Parses a list like "0-3,8". Each processor must be in the affinity mask and may occur once; their order is kept.
// kInvalidArgument otherwise.
StatusOr<std::vector<int>> ParseCpuList(std::string_view text);

struct TeamCpus {
  int threads = 1;
  std::vector<int> cpus;  // the processor of each thread; empty = the system schedules them
};
// Interprets `--threads` (0 = not given) and `--cpus` ("" = not given). By default a machine with several NUMA nodes
// gets one thread per usable core, pinned to it, because weights are placed in the memory of the node whose threads
// read them. kInvalidArgument if the list is wrong or shorter than `threads`.
StatusOr<TeamCpus> ChooseCpus(int threads, std::string_view cpus);

}  // namespace gyre
