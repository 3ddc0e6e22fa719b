// The share of this machine's cores for each process that `gyre launch` starts and that computes on it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gyre {

// `commands`: those of the local processes. Those that name neither threads nor processors get cores of their own: the
// `cores` without those that others name or count; if there are too few, one thread each. `most`: the cores that a
// quota allows; if it is less than the cores, they get that many threads and no cores, as others under the same quota
// may run elsewhere. A single process keeps its settings.
void ShareCores(std::vector<std::vector<std::string>*> commands, std::vector<int> cores, size_t most);

}  // namespace gyre
