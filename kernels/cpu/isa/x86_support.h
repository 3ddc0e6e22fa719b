// What __builtin_cpu_supports does not tell about an x86-64 processor. Thread-safe.
#pragma once

#include <string>

namespace gyre::cpu {

// "" or the reason why AMX can't be used. The first call asks the system for permission to use the tiles.
const std::string& AmxMissing();
bool HasAvxVnni();

}  // namespace gyre::cpu
