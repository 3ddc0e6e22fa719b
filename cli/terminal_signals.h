// Signals during the editing of a line on the terminal. A process that stops or ends by one restores the terminal
// first, and learns that it has to draw the line again.
#pragma once

namespace gyre {

// Restores the terminal if a line is being edited on it. Handlers of signals may call it, too.
void RestoreTerminal();

// Installs handlers for its lifetime: for Ctrl-Z, Ctrl-\, the signal that continues a process, and a window's new size.
// One object at a time. Not thread-safe.
class TerminalSignals {
 public:
  TerminalSignals();
  ~TerminalSignals();
  TerminalSignals(const TerminalSignals&) = delete;
  TerminalSignals& operator=(const TerminalSignals&) = delete;

  // Begin and End enclose the editing of a line; call Begin before the terminal is changed.
  void Begin();
  void End();
  // Whether the terminal was told to put marks around pasted text.
  void SetMarks(bool on);
  // Returns true once after the process was continued or the window got another size: another program may have changed
  // the terminal.
  static bool TakeRedraw();
};

}  // namespace gyre
