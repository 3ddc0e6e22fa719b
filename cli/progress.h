// A progress bar on a terminal, a line each quarter elsewhere; nothing for what takes under a second.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace gyre {

class Progress {
 public:
  Progress(std::string what, bool quiet) : what_(std::move(what)), quiet_(quiet) {}
  // Bytes.
  void Update(uint64_t done, uint64_t total);
  // Ends the bar's line.
  void Finish();

 private:
  const std::string what_;
  const bool quiet_;
  const Deadline start_ = Clock::now();
  Deadline drawn_{};
  int quarter_ = 0;
  bool shown_ = false;
};

}  // namespace gyre
