// Which processors a process may use, and which its threads are to run on. Ask before any thread is sent somewhere: the
// affinity mask is the calling thread's.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace gyre {

// One processor of each physical core of the affinity mask, a NUMA node after the other: a core's second thread adds
// nothing to streams and products that already fill it. Never empty.
std::vector<int> UsableCores();
// As many as UsableCores, but no more than the control groups' quotas (v2) pay for.
int DefaultThreads();
// Whether two processors are threads of one core.
bool SameCore(int a, int b);
// "0-3,8": processors of the affinity mask, each once, in this order. kInvalidArgument.
StatusOr<std::vector<int>> ParseCpuList(std::string_view text);

struct TeamCpus {
  int threads = 1;
  std::vector<int> cpus;  // of each thread; empty = the system moves them
};
// What `--threads` (0 = not given) and `--cpus` ("" = not given) ask for. On a machine of several NUMA nodes the
// default is a thread for each usable core, which stays there: weights lie in the memory of the node whose threads read
// them. kInvalidArgument.
StatusOr<TeamCpus> ChooseCpus(int threads, std::string_view cpus);

}  // namespace gyre
