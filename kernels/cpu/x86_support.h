// What the compiler's own question, __builtin_cpu_supports, does not answer of an x86-64 processor. Thread-safe.
#pragma once

#include <string>

namespace gyre::cpu {

// "" or what is missing. Asks the system for leave to use the tiles, the first time.
const std::string& AmxMissing();
bool HasAvxVnni();

}  // namespace gyre::cpu
