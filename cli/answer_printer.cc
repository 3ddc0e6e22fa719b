#include "cli/answer_printer.h"

#include <unistd.h>

#include <cstdio>

namespace gyre {
namespace {

bool Write(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

}  // namespace

AnswerPrinter::AnswerPrinter() : terminal_(isatty(STDOUT_FILENO) != 0) {}

bool AnswerPrinter::Print(const std::string& text, bool thinks) {
  if ((thinks && !terminal_) || text.empty()) return true;
  std::string out;
  if (thinks != dim_) out = thinks ? "\033[2m" : "\033[0m\n\n";
  dim_ = thinks;
  return Write(out + text);
}

void AnswerPrinter::End() {
  if (dim_) Write("\033[0m");
  dim_ = false;
}

}  // namespace gyre
