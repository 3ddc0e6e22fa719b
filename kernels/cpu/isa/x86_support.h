// Features of an x86-64 processor that __builtin_cpu_supports does not report. Thread-safe.
#pragma once

#include <string>

namespace gyre::cpu {

// "" or the reason why AMX can't be used. The first call asks the system for permission to use the tiles.
const std::string& AmxMissing();
bool HasAvxVnni();

}  // namespace gyre::cpu
