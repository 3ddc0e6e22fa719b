// The part of a text that stands in the context, and how it moves on when the context is full (docs/scheduler.md).
// Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gyre {

// The text's first tokens, and, after a gap, its newest ones. Before the first shift it is the whole text.
class ContextWindow {
 public:
  // Keeps the first `keep` tokens, at most half of `limit`, and the newer half of the others (rounded down).
  // REQUIRES: the window has more than `limit` of the text's `total` tokens; limit >= 1. Afterwards it has 1 to
  // `limit`.
  void Shift(uint32_t keep, size_t total, uint32_t limit) {
    kept_ = std::min(shifts_ == 0 ? keep : kept_, limit / 2);
    begin_ = std::max<size_t>(begin_, kept_);
    begin_ = total - std::clamp<size_t>((total - begin_) / 2, 1, limit - kept_);
    ++shifts_;
  }

  // The place in the text of the token that stands at a position of the context.
  size_t IndexAt(uint32_t position) const { return position < kept_ ? position : position + gap(); }
  // Tokens of the text that are left out.
  size_t gap() const { return begin_ - kept_; }
  uint32_t kept() const { return kept_; }
  uint32_t shifts() const { return shifts_; }

 private:
  uint32_t kept_ = 0;
  size_t begin_ = 0;  // the first token behind the gap
  uint32_t shifts_ = 0;
};

}  // namespace gyre
