// An answer on stdout.
#pragma once

#include <string>

namespace gyre {

// Text on stdout as it comes. A model's reasoning is dim on a terminal, and left out elsewhere. Not thread-safe.
class AnswerPrinter {
 public:
  AnswerPrinter();
  ~AnswerPrinter() { End(); }
  // False: stdout takes nothing more; errno says why.
  bool Print(const std::string& text, bool thinks);
  // Leaves the terminal as it was.
  void End();

 private:
  const bool terminal_;
  bool dim_ = false;
};

}  // namespace gyre
