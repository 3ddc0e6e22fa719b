#include "coordinator/engine/ngram_drafter.h"

#include <algorithm>

namespace gyre {

// The hash of the kLeast tokens that end at `end`.
size_t NgramDrafter::Bucket(size_t end) const {
  uint64_t hash = 0;
  for (size_t i = end + 1 - kLeast; i <= end; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens_[i])) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash & (heads_.size() - 1);
}

void NgramDrafter::Rehash() {
  heads_.assign(std::max<size_t>(64, 2 * heads_.size()), kNone);
  for (size_t place = 0; place < before_.size(); ++place) {
    if (place + 1 < kLeast) continue;
    uint32_t& head = heads_[Bucket(place)];
    before_[place] = head;
    head = static_cast<uint32_t>(place);
  }
}

void NgramDrafter::Add(TokenId token) {
  if (tokens_.size() >= heads_.size()) Rehash();
  tokens_.push_back(token);
  before_.push_back(kNone);
  const size_t place = tokens_.size() - 1;
  if (place < begin_ + kLeast - 1) return;
  uint32_t& head = heads_[Bucket(place)];
  before_[place] = head;
  head = static_cast<uint32_t>(place);
}

// The number of tokens up to `place` that equal the last ones.
size_t NgramDrafter::Match(size_t place) const {
  const size_t most = std::min({kLongest, place + 1, tokens_.size() - begin_});
  size_t n = 0;
  while (n < most && tokens_[place - n] == tokens_[tokens_.size() - 1 - n]) ++n;
  return n;
}

NgramDrafter::Guess NgramDrafter::Draft(size_t most) const {
  Guess guess;
  if (most == 0 || tokens_.size() < begin_ + kLeast) return guess;
  size_t at = 0, places = 0;
  for (uint32_t place = before_.back(); place != kNone && places < kPlaces; place = before_[place], ++places) {
    const size_t match = Match(place);
    if (match <= guess.match) continue;
    guess.match = match;
    at = place + 1;
    if (match == kLongest) break;
  }
  if (guess.match < kLeast) return {};
  // A text that repeats itself goes on with what is drafted already. What stands before the break ends there.
  const size_t end = at < begin_ ? begin_ : SIZE_MAX;
  for (size_t i = 0; i < most && at + i < end; ++i) {
    const size_t from = at + i;
    guess.tokens.push_back(from < tokens_.size() ? tokens_[from] : guess.tokens[from - tokens_.size()]);
  }
  return guess;
}

}  // namespace gyre
