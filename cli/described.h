// The commands and flags of the command line as data, from which help, manual and completions are written.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"

namespace gyre {

// A flag as completions and the manual need it.
struct Flag {
  std::string long_name, short_name;  // without dashes; "" = none
  std::string description, type;      // type "" = takes no value
  std::string standard;               // the value where none is given; "" = the description tells
  std::vector<std::string> choices;   // all values, where they are few
  bool file() const { return type == "FILE" || type == "FOLDER"; }
};

struct Described {
  std::string name, summary, usage, example;
  std::vector<Flag> flags, words;  // words: those without a flag
};

Described Describe(const Command& command);

}  // namespace gyre
