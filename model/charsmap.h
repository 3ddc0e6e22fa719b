// SentencePiece's compiled normalization: a double-array trie from strings to their replacements.
// Source: the "precompiled_charsmap" of its .model files (a size, the units of a Darts-clone array, texts that end in
// NUL); Aoe 1989 for double arrays.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gyre {

// Immutable, thread-safe.
class Charsmap {
 public:
  // kDataLoss: sizes that do not fit, a replacement outside the blob or longer than 256 bytes. Empty bytes: a map
  // that changes nothing.
  static StatusOr<Charsmap> Parse(std::string_view bytes);

  // `text` with the longest string of the map that begins at each place replaced, left to right. Bytes that are not
  // UTF-8 stay. Strings longer than 64 bytes are not searched for.
  std::string Apply(std::string_view text) const;

  bool empty() const { return units_.empty(); }
  // The bytes in the form that Parse takes.
  std::string Bytes() const;

 private:
  struct Match {
    size_t length = 0;  // 0: nothing begins here
    std::string_view to;
  };
  Match LongestAt(std::string_view text, size_t at) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // ends in NUL
};

}  // namespace gyre
