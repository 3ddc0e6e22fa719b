// Flags from the environment and from a settings file, as words of a command line.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command_words.h"

namespace gyre {

// The words to put in front of line.words: the flags that the environment (GYRE_<COMMAND>_<FLAG>, else GYRE_<FLAG>)
// sets and the line does not give, and those that only the settings file sets. A GYRE_<FLAG> of another command's flag
// is left out. Usage error: a value or a name in the file or in the environment is wrong.
StatusOr<std::vector<std::string>> SettingsWords(const Command& command, const CommandLine& line);

}  // namespace gyre
