// Lines that a person types or that come through a pipe.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace gyre {

// Makes multibyte text work: the locale of the environment if it is UTF-8, else C.UTF-8. Numbers stay as in C.
void UseUtf8();

// Reads messages from stdin. On a terminal (stdin and stdout) lines are edited and remembered in
// $XDG_STATE_HOME/gyre/history or ~/.local/state/gyre/history, a message of several lines as one entry; a paste is one
// message, also with several lines, and Tab completes the first word of a line that begins with "/".
// In both cases a backslash at a line's end continues the message on the next line, and all lines between two lines of
// `"""` are one message; text may stand behind the first and before the second. Not thread-safe.
class MessageReader {
 public:
  enum class Result {
    kMessage,
    kEnd,          // of the input
    kInterrupted,  // Ctrl-C: what was typed is dropped
  };
  // commands: what Tab completes.
  explicit MessageReader(std::vector<std::string> commands);
  ~MessageReader();
  Result Read(std::string* message);
  // Asks on the terminal and takes one line; what was typed before is dropped, as it was no answer. kEnd: also where
  // there is no terminal.
  Result Ask(const std::string& question, std::string* answer);
  bool terminal() const { return editor_ != nullptr; }

 private:
  class Input;
  class Editor;
  Result ReadLine(bool first, std::string* line);
  Result ReadLines(std::string* message);

  std::unique_ptr<Input> input_;
  std::unique_ptr<Editor> editor_;  // null: not a terminal
};

}  // namespace gyre
