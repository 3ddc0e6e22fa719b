// Flags that come from the environment and from a settings file, as words of a command line.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command_line.h"

namespace gyre {

// A command line cut into its parts.
struct CommandLine {
  std::string config;                      // of --config, before the command or behind it; "" = none
  std::string command;                     // "" = none
  std::vector<std::string> before, words;  // before the command and behind it, without --config
};
// Usage error: --config has no value.
StatusOr<CommandLine> CutCommandLine(const std::vector<std::string>& words);

// The words to put in front of line.words: what the environment (GYRE_<COMMAND>_<FLAG>, else GYRE_<FLAG>) says of flags
// that the line does not give, and what the settings file says of the others. A GYRE_<FLAG> that only another command
// can take is left out. Usage error: a value or a name in the file or in the environment is wrong.
StatusOr<std::vector<std::string>> SettingsWords(const Command& command, const CommandLine& line);

}  // namespace gyre
