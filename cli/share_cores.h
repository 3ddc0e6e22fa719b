// Who gets which cores of this machine when `gyre launch` starts several workers on it.
#pragma once

#include <string>
#include <vector>

namespace gyre {

// `commands`: the local workers', words after the program. Those that say nothing of threads or processors get cores of their own, of
// `cores` without those that others name or count; where there are too few, a thread each. A single worker keeps what it says.
void ShareCores(std::vector<std::vector<std::string>*> commands, std::vector<int> cores);

}  // namespace gyre
