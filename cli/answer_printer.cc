#include "cli/answer_printer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace gyre {
namespace {

bool Write(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

bool CanErase() {
  const char* const term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) != "dumb";
}

// The columns of the terminal's window at this time. 0: they are not known, or too few to wrap words.
size_t WindowColumns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return known && size.ws_col >= 16 ? size.ws_col : 0;
}

}  // namespace

AnswerPrinter::AnswerPrinter(bool wrap)
    : terminal_(isatty(STDOUT_FILENO) != 0), wraps_(wrap && terminal_ && CanErase()) {}

bool AnswerPrinter::Print(const std::string& text, bool thinks) {
  if ((thinks && !terminal_) || text.empty()) return true;
  std::string out;
  if (thinks != dim_) {
    out = thinks ? "\033[2m" : "\033[0m\n\n";
    if (!thinks) wrap_.NewLine();
  }
  dim_ = thinks;
  return Write(out + (terminal_ ? Wrapped(shown_.Push(text)) : text));
}

std::string AnswerPrinter::Wrapped(const std::string& text) {
  return wraps_ ? wrap_.Push(text, WindowColumns()) : text;
}

void AnswerPrinter::End() {
  if (const std::string rest = Wrapped(shown_.End()); !rest.empty()) Write(rest);
  if (dim_) Write("\033[0m");
  dim_ = false;
}

}  // namespace gyre
