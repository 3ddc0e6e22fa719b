// An answer on stdout.
#pragma once

#include <string>

#include "cli/terminal_text.h"
#include "cli/word_wrap.h"

namespace gyre {

// Text on stdout as it comes. On a terminal a model's reasoning is dim, and control characters are shown as
// TerminalText has them; elsewhere reasoning is left out, and text stays as it is. Not thread-safe.
class AnswerPrinter {
 public:
  // wrap: on a terminal, words that don't fit into a row go to the next one.
  explicit AnswerPrinter(bool wrap);
  ~AnswerPrinter() { End(); }
  // False: stdout takes nothing more; errno says why.
  bool Print(const std::string& text, bool thinks);
  // Ends an answer: leaves the terminal as it was.
  void End();

 private:
  std::string Wrapped(const std::string& text);

  const bool terminal_, wraps_;
  bool dim_ = false;
  TerminalText shown_;
  WordWrap wrap_;
};

}  // namespace gyre
