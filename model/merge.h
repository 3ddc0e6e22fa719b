// Byte-pair merging, as in SentencePiece-style and byte-level tokenizers: the best pair first, of equals the
// leftmost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

#include "base/ids.h"

namespace gyre {

struct MergeSymbol {
  size_t begin = 0, length = 0;  // bytes of the text
  TokenId id = -1;               // -1: in no vocabulary
};
struct PairRank {
  float rank = 0;   // lower merges first; counts up to 2^24 are exact
  TokenId id = -1;  // of the two as one; -1: they don't merge
};

// In texts of up to this many symbols the best pair is searched; longer ones use a heap. So a word costs little, and
// a megabyte does not take quadratic time.
inline constexpr size_t kMergeBySearch = 24;

// `find(left, right)` -> PairRank of two neighbouring symbols. Afterwards `symbols` has the merged symbols, in order.
template <typename Find>
void MergePairs(std::vector<MergeSymbol>* symbols, Find find, size_t by_search = kMergeBySearch) {
  std::vector<MergeSymbol>& s = *symbols;
  constexpr float kNone = std::numeric_limits<float>::infinity();
  if (s.size() <= by_search) {
    PairRank ranks[kMergeBySearch];  // of symbol i and the next
    auto look = [&](size_t i) {
      ranks[i] = find(s[i], s[i + 1]);
      if (ranks[i].id < 0) ranks[i].rank = kNone;
    };
    for (size_t i = 0; i + 1 < s.size(); ++i) look(i);
    while (s.size() > 1) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < s.size(); ++i) {
        if (ranks[i].rank < ranks[best].rank) best = i;
      }
      if (ranks[best].id < 0) return;
      s[best].length += s[best + 1].length;
      s[best].id = ranks[best].id;
      s.erase(s.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      for (size_t i = best + 1; i + 1 < s.size(); ++i) ranks[i] = ranks[i + 1];
      if (best > 0) look(best - 1);
      if (best + 1 < s.size()) look(best);
    }
    return;
  }
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
  struct Merge {  // kept small, as a megabyte of text has a million of them
    float rank;
    uint32_t left;
    TokenId id;
    uint32_t length;  // of both; a stale entry has another than its symbols
    bool operator<(const Merge& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  std::vector<uint32_t> previous(s.size()), next(s.size());
  std::vector<Merge> found;
  auto consider = [&](uint32_t left, uint32_t right, auto&& push) {
    if (left == kEnd || right == kEnd) return;
    const PairRank r = find(s[left], s[right]);
    if (r.id >= 0) push(Merge{r.rank, left, r.id, static_cast<uint32_t>(s[left].length + s[right].length)});
  };
  const auto n = static_cast<uint32_t>(s.size());
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == n ? kEnd : i + 1;
    consider(previous[i], i, [&](const Merge& m) { found.push_back(m); });
  }
  std::priority_queue<Merge> merges(std::less<Merge>(), std::move(found));
  auto push = [&](const Merge& m) { merges.push(m); };
  while (!merges.empty()) {
    const Merge m = merges.top();
    merges.pop();
    MergeSymbol& left = s[m.left];
    if (left.length == 0 || next[m.left] == kEnd) continue;
    MergeSymbol& right = s[next[m.left]];
    if (left.length + right.length != m.length) continue;
    left.length = m.length;
    left.id = m.id;
    right.length = 0;
    next[m.left] = next[next[m.left]];
    if (next[m.left] != kEnd) previous[next[m.left]] = m.left;
    consider(previous[m.left], m.left, push);
    consider(m.left, next[m.left], push);
  }
  std::erase_if(s, [](const MergeSymbol& symbol) { return symbol.length == 0; });
}

}  // namespace gyre
