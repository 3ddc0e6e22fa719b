// The words of a command line: its command, and which of the other words are flags and which are values.
#pragma once

#include <CLI/CLI.hpp>

#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command_line.h"

namespace gyre {

// A command line, split into its parts.
struct CommandLine {
  std::string config;                      // of --config, before the command or behind it; "" = none
  std::string command;                     // "" = none; of another program's name ours, if there is one (foreign.h)
  std::string said;                        // the words in whose place `command` is; "" = it was given itself
  std::vector<std::string> before, words;  // before the command and behind it, without --config
};
// Usage error: --config has no value.
StatusOr<CommandLine> CutCommandLine(const std::vector<std::string>& words);

// The flags of one command, as its app declares them. Not thread-safe.
class CommandFlags {
 public:
  explicit CommandFlags(const Command& command) : command_(command) { command.add(&app_); }

  // Finds a flag by its long name without dashes; nullptr = unknown, or not allowed in settings.
  CLI::Option* Find(const std::string& name);
  // Finds a flag by a word with its dashes, as --temp or -s.
  CLI::Option* FindWord(const std::string& word) { return app_.get_option_no_throw(word); }
  std::vector<CLI::Option*> All() { return app_.get_options(); }
  // The long names of those that Find finds.
  std::vector<std::string> Names();
  // The flags in one word, as --temp=1 or -qn; unknown ones are left out. next: the following word is the value of the
  // last flag.
  std::vector<CLI::Option*> In(const std::string& word, bool* next);
  // The flags that words give; a word without a dash gives the flag that it stands for.
  std::set<CLI::Option*> Given(const std::vector<std::string>& words);
  // The reason why the flag can't have the value; "" = it can.
  std::string Refusal(CLI::Option* option, const std::string& value) const;
  // The flag with the value, as words of a command line.
  static std::vector<std::string> Words(CLI::Option* option, const std::string& value);

 private:
  const Command& command_;
  CLI::App app_;
};

}  // namespace gyre
