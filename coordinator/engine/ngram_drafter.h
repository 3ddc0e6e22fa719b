// Drafts from a text itself: what followed the last tokens when they stood in it before (docs/speculation.md). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace gyre {

// The known text of one request, in which the longest earlier occurrence of its end is found. Not thread-safe.
class NgramDrafter {
 public:
  // Shorter matches propose nothing.
  static constexpr size_t kLeast = 3;
  // A longer match says no more. kPlaces: places of the last tokens that are compared, the newest first.
  static constexpr size_t kLongest = 64, kPlaces = 32;

  void Add(TokenId token);
  void Add(std::span<const TokenId> tokens) {
    for (const TokenId token : tokens) Add(token);
  }
  // Nothing matches across this place: what comes is another text.
  void Break() { begin_ = tokens_.size(); }

  struct Guess {
    std::vector<TokenId> tokens;
    size_t match = 0;  // tokens before them that stood before the same tokens, up to kLongest
  };
  // At most `most` tokens; none where nothing matches.
  Guess Draft(size_t most) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  size_t Bucket(size_t end) const;
  size_t Match(size_t place) const;
  void Rehash();

  std::vector<TokenId> tokens_;
  size_t begin_ = 0;              // of the text that goes on
  std::vector<uint32_t> heads_;   // for each bucket of the kLeast tokens up to a place, the last such place
  std::vector<uint32_t> before_;  // for each place, the one before it in its bucket
};

}  // namespace gyre
