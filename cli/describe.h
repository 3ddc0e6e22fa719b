// Texts that are made from the table of commands: help, the manual page, completion scripts.
#pragma once

#include <string>

#include "base/status.h"
#include "cli/command_line.h"

namespace gyre {

// The text of `gyre --version` and `gyre version`.
std::string VersionText();
// Names the app, and adds --config, which settings.h reads.
void DescribeCommand(const Command& command, CLI::App* app);
// The help of a command, or of the program for "". Usage error: there is no such command.
StatusOr<std::string> HelpText(const std::string& command);
Status UnknownCommand(const std::string& name);
// A manual page in roff.
std::string ManualPage();
// shell: bash, zsh or fish.
std::string CompletionScript(const std::string& shell);

}  // namespace gyre
