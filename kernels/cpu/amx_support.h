// Whether this process may use AMX.
#pragma once

#include <string>

namespace gyre::cpu {

// "" or what is missing. Asks the system for leave to use the tiles, the first time; thread-safe.
const std::string& AmxMissing();

}  // namespace gyre::cpu
