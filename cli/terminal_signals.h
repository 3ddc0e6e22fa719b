// Signals that come while a line is edited on the terminal. A process that stops or ends by one leaves the terminal as
// it was before, and finds out that it has to draw the line again.
#pragma once

namespace gyre {

// Gives the terminal back if a line is being edited on it. For handlers of signals, too.
void RestoreTerminal();

// Its handlers are there as long as it lives: of Ctrl-Z, Ctrl-\, what continues a process, and a window's new size. One
// at a time. Not thread-safe.
class TerminalSignals {
 public:
  TerminalSignals();
  ~TerminalSignals();
  TerminalSignals(const TerminalSignals&) = delete;
  TerminalSignals& operator=(const TerminalSignals&) = delete;

  // Around the editing of a line; Begin before the terminal is changed.
  void Begin();
  void End();
  // Whether the terminal was told to mark what is pasted.
  void SetMarks(bool on);
  // True once after the process was continued, or the window got another size: the terminal may be as somebody else
  // left it.
  static bool TakeRedraw();
};

}  // namespace gyre
