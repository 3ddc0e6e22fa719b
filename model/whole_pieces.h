// Remembers which pieces result from merging their own text. Most words of a text are such pieces and need no
// merging.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace gyre {

// Each piece is tried when it is first met. Thread-safe: every thread gets the same result.
class WholePieces {
 public:
  explicit WholePieces(size_t pieces) : known_(pieces) {}

  // `find_out()`: whether the piece is one; called only once or a few times.
  template <typename Fn>
  bool Is(TokenId id, Fn find_out) const {
    std::atomic<uint8_t>& known = known_[static_cast<size_t>(id)];
    uint8_t state = known.load(std::memory_order_relaxed);
    if (state == kUnknown) {
      state = find_out() ? kYes : kNo;
      known.store(state, std::memory_order_relaxed);
    }
    return state == kYes;
  }

 private:
  enum : uint8_t { kUnknown = 0, kYes, kNo };
  mutable std::vector<std::atomic<uint8_t>> known_;
};

}  // namespace gyre
