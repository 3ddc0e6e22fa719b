// The limits of one rendering. Templates come from unauthenticated peers: code that walks a value or a text asks the
// budget first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace gyre::jinja {

// An error while a template is read or rendered. It is thrown inside this folder only, because errors arise deep
// in recursion; Template turns it into a Status.
struct Error {
  Status status;
};
template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error{InvalidArgument(format, std::forward<Args>(args)...)};
}

// Each method throws Error (kResourceExhausted) if the limit is exceeded.
class Budget {
 public:
  // The cost of an object on the heap (a string, a list, a function) beside its content.
  static constexpr size_t kObject = 64;

  Budget(uint64_t max_steps, size_t max_bytes)
      : max_steps_(max_steps), max_bytes_(max_bytes), steps_left_(max_steps), bytes_left_(max_bytes) {}

  size_t max_bytes() const { return max_bytes_; }
  // Counts one step for each node that is evaluated and each value that is compared or printed.
  void Step(uint64_t n = 1) {
    if (n > steps_left_) {
      throw Error{ResourceExhausted("the template takes more than {} steps", max_steps_)};
    }
    steps_left_ -= n;
  }
  // Counts one walk over a text of `bytes` bytes.
  void Read(size_t bytes) { Step(bytes / kBytesPerStep); }
  // Counts a search in a text: the slowest search compares the pattern at each place.
  void Search(size_t text, size_t pattern) {
    constexpr size_t kPatternPerStep = 32;
    const size_t comparisons = pattern / kPatternPerStep;
    if (comparisons > 0 && text / kBytesPerStep > max_steps_ / comparisons) Step(UINT64_MAX);
    Step(text / kBytesPerStep * (1 + comparisons));
  }
  // Counts the memory of a new text or list. Call it before making one.
  void Charge(size_t bytes) {
    if (bytes > bytes_left_) {
      throw Error{ResourceExhausted("the template makes more than {} bytes", max_bytes_)};
    }
    bytes_left_ -= bytes;
  }
  // Counts `n` times `bytes`, which may overflow.
  void Charge(uint64_t n, size_t bytes) {
    if (bytes > 0 && n > max_bytes_ / bytes) Charge(SIZE_MAX);
    Charge(static_cast<size_t>(n) * bytes);
  }

 private:
  static constexpr size_t kBytesPerStep = 256;
  const uint64_t max_steps_;
  const size_t max_bytes_;
  uint64_t steps_left_;
  size_t bytes_left_;
};

}  // namespace gyre::jinja
