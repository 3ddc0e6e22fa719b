// Who gets which cores of this machine when `gyre launch` starts several processes that compute on it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gyre {

// `commands`: those of the local processes. Those that say nothing of threads or processors get cores of their own, of
// `cores` without those that others name or count; where there are too few, a thread each. `most`: how many a quota
// pays for; where it is less than the cores, they get as many threads and no cores, as others under the same quota may
// be elsewhere. A single process keeps what it says.
void ShareCores(std::vector<std::vector<std::string>*> commands, std::vector<int> cores, size_t most);

}  // namespace gyre
