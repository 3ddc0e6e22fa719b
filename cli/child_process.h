// Other programs that a command starts.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace gyre {

struct ChildStreams {
  int in = -1;  // -1: it has no input
  int out = -1, err = -1;
};

// Starts a program, which is looked up in PATH unless its name has a slash. It has a process group of its own: a Ctrl-C
// on the terminal reaches only this process, which then ends its children in order. `folder`: where it runs, and where
// a relative name with a slash is looked up; "": where this process runs. The descriptors stay the caller's.
// Thread-safe. kUnavailable: the system's reason.
StatusOr<pid_t> StartChild(std::vector<std::string> command, const ChildStreams& streams,
                           const std::string& folder = "");

struct ChildRun {
  std::vector<std::string> command;
  std::string folder;             // as StartChild has it
  std::string input;              // what it reads from stdin
  Duration time{};                // after it the program is ended
  size_t output_bytes = 0;        // of stdout, and as many of stderr, are kept
  std::function<bool()> stopped;  // asked every 50 ms; true ends the program
};

struct ChildEnd {
  enum class How : unsigned char { kExited, kSignal, kLate, kStopped };
  How how = How::kExited;
  int code = 0;  // of kExited; the signal of kSignal
  std::string out, err;
  bool cut = false;  // there was more output than is kept
};

// Runs a program to its end. It is ended together with all processes of its group: by SIGTERM, and half a second later
// by SIGKILL. What it leaves behind when it ends by itself goes on. Errors as StartChild.
StatusOr<ChildEnd> RunChild(const ChildRun& run);

}  // namespace gyre
