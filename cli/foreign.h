// The commands and flags of llama.cpp, ollama, vLLM and other engines, in the words of Gyre.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command_words.h"

namespace gyre {

// Our command for what another program calls `name` ("models" for "list"), or `name` itself.
std::string OurCommand(const std::string& name);
// Usage error: another program has a command of this name, and here something else takes its place. OK: none has.
Status CheckForeignCommand(const std::string& name);
// The long name, without dashes, of the flag that another program calls `word`; "" = there is none.
std::string OurFlag(CommandFlags& flags, const std::string& word);

struct Translated {
  std::vector<std::string> words;  // with our flags only
  std::vector<std::string> notes;  // a sentence for each flag that was left out as it has no effect here
};
// The words behind a command, where flags may be other programs'. Flags of the command itself, and flags that nobody
// knows, stay as they are. Usage error: a foreign flag asks for what Gyre does not do, or does in another way.
StatusOr<Translated> Translate(const Command& command, const std::vector<std::string>& words);

}  // namespace gyre
