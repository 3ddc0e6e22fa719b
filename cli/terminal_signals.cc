#include "cli/terminal_signals.h"

#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

namespace gyre {
namespace {

termios before_editing{};
volatile std::sig_atomic_t editing = 0;
volatile std::sig_atomic_t marks = 0;
volatile std::sig_atomic_t redraw = 0;

// Restores the terminal for others, then has the signal do its default action.
extern "C" void OnStop(int signal) {
  const int error = errno;
  RestoreTerminal();
  struct sigaction plain {};
  struct sigaction own {};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, &own);
  std::raise(signal);  // a stopped process stands here until it is continued
  sigaction(signal, &own, nullptr);
  errno = error;
}

extern "C" void OnRedraw(int) { redraw = 1; }

using Handler = void (*)(int);
constexpr std::array<std::pair<int, Handler>, 4> kHandlers{
    {{SIGTSTP, OnStop}, {SIGQUIT, OnStop}, {SIGCONT, OnRedraw}, {SIGWINCH, OnRedraw}}};
std::array<struct sigaction, kHandlers.size()> before{};

}  // namespace

void RestoreTerminal() {
  if (editing == 0) return;
  const std::string_view leave = marks != 0 ? "\033[?2004l\n" : "\n";
  [[maybe_unused]] const ssize_t n = write(STDOUT_FILENO, leave.data(), leave.size());
  tcsetattr(STDIN_FILENO, TCSANOW, &before_editing);
}

TerminalSignals::TerminalSignals() {
  for (size_t i = 0; i < kHandlers.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = kHandlers[i].second;
    action.sa_flags = SA_RESTART | SA_NODEFER;  // so that a handler can raise its signal
    sigaction(kHandlers[i].first, nullptr, &before[i]);
    // A shell without job control lets its programs ignore Ctrl-Z.
    if (before[i].sa_handler != SIG_IGN) sigaction(kHandlers[i].first, &action, nullptr);
  }
}

TerminalSignals::~TerminalSignals() {
  for (size_t i = 0; i < kHandlers.size(); ++i) sigaction(kHandlers[i].first, &before[i], nullptr);
}

void TerminalSignals::Begin() {
  redraw = 0;
  editing = tcgetattr(STDIN_FILENO, &before_editing) == 0 ? 1 : 0;
}
void TerminalSignals::End() { editing = 0; }
void TerminalSignals::SetMarks(bool on) { marks = on ? 1 : 0; }
bool TerminalSignals::TakeRedraw() {
  if (redraw == 0) return false;
  redraw = 0;
  return true;
}

}  // namespace gyre
