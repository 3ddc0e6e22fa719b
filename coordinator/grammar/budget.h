// What one grammar may cost: memory, steps and time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace gyre::grammar {

// The bounds of one grammar. What passes one is refused by the bound's name.
struct Bounds {
  size_t source_bytes = 1 << 20;         // of a schema, a pattern or a grammar
  size_t nesting = 192;                  // of groups, schemas, JSON values
  size_t rules = 100'000;                // of the grammar
  size_t expressions = 2'000'000;        // distinct ones, so the lexer's states too
  size_t states = 200'000;               // of the parser
  size_t bytes = 256 << 20;              // of all of these together
  size_t steps = 200'000'000;            // of one compilation
  size_t mask_steps = 20'000'000;        // of one mask, of one text that is read
  std::chrono::milliseconds time{2000};  // of one compilation
};

// Counts what a grammar costs. The first bound that is passed is kept, and everything after it fails.
// Not thread-safe: belongs to a grammar and its lock.
class Budget {
 public:
  explicit Budget(const Bounds& bounds) : bounds_(bounds) {}
  const Bounds& bounds() const { return bounds_; }

  // Starts a compilation (with its time limit) or a later piece of work (without one).
  void Begin(bool timed) {
    steps_ = next_look_ = 0;
    timed_ = timed;
    if (timed) end_ = std::chrono::steady_clock::now() + bounds_.time;
  }
  // Takes steps; false: a bound is passed.
  bool Step(size_t n = 1) {
    steps_ += n;
    if (steps_ >= next_look_) Look();
    return passed_.empty();
  }
  bool Memory(size_t bytes) {
    bytes_ += bytes;
    if (bytes_ > bounds_.bytes) Pass("bytes of memory", bounds_.bytes);
    return passed_.empty();
  }
  void Free(size_t bytes) { bytes_ -= bytes; }
  void Count(const char* what, size_t count, size_t most) {
    if (count > most) Pass(what, most);
  }
  void Pass(const std::string& bound, size_t most) {
    if (passed_.empty()) passed_ = fmt::format("the bound of {} {} is passed", most, bound);
  }
  bool passed() const { return !passed_.empty(); }
  size_t bytes() const { return bytes_; }
  Status status() const { return passed_.empty() ? absl::OkStatus() : ResourceExhausted("grammar: {}", passed_); }

 private:
  void Look() {
    next_look_ = steps_ + 4096;
    const size_t most = timed_ ? bounds_.steps : bounds_.mask_steps;
    if (steps_ > most) Pass("steps", most);
    if (timed_ && std::chrono::steady_clock::now() > end_) {
      Pass("ms for a compilation", static_cast<size_t>(bounds_.time.count()));
    }
  }

  const Bounds bounds_;
  size_t steps_ = 0, next_look_ = 0, bytes_ = 0;
  bool timed_ = false;
  std::chrono::steady_clock::time_point end_;
  std::string passed_;
};

}  // namespace gyre::grammar
