// Encodes each word of a text once, as prose repeats most of its words.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "model/merge.h"

namespace gyre {

// For one text and the ids that it becomes; words are views into the text, and their ids a part of the ids. A word is
// forgotten when another needs its place.
class WordCache {
 public:
  // `bytes`: of the text. Short texts get small tables: clearing a large one would take longer than it saves.
  explicit WordCache(size_t bytes) : words_(std::clamp<size_t>(std::bit_ceil(bytes / 8 + 1), 16, 4096)) {}

  // Appends the word's ids; calls `encode(word, out)` if it is new.
  template <typename Fn>
  void Append(std::string_view word, std::vector<TokenId>* out, Fn encode) {
    if (word.size() > kLongest) return encode(word, out);
    Word& known = words_[Hash(word) & (words_.size() - 1)];
    const size_t begin = out->size();
    if (known.length == word.size() && std::memcmp(known.text, word.data(), word.size()) == 0) {
      out->resize(begin + known.ids);
      std::copy_n(out->begin() + static_cast<std::ptrdiff_t>(known.begin), known.ids,
                  out->begin() + static_cast<std::ptrdiff_t>(begin));
      return;
    }
    encode(word, out);
    known = {word.data(), begin, static_cast<uint32_t>(word.size()), static_cast<uint32_t>(out->size() - begin)};
  }

 private:
  static constexpr size_t kLongest = 64;  // bytes; longer words rarely repeat
  struct Word {
    const char* text = nullptr;
    size_t begin = 0;  // of its ids
    uint32_t length = 0, ids = 0;
  };
  // Hashes eight bytes at a time.
  static uint64_t Hash(std::string_view word) {
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
    uint64_t hash = word.size() * kOdd, part = 0;
    size_t at = 0;
    for (; at + 8 <= word.size(); at += 8) {
      std::memcpy(&part, word.data() + at, 8);
      hash = (hash ^ part) * kOdd;
      hash ^= hash >> 32;
    }
    part = 0;
    std::memcpy(&part, word.data() + at, word.size() - at);
    hash = (hash ^ part) * kOdd;
    return hash ^ hash >> 32;
  }

  std::vector<Word> words_;
};

// A part of a text, in bytes.
struct TextSpan {
  size_t begin = 0, end = 0;
};

// Memory for one Encode, which all spans of its text share.
struct EncodeScratch {
  explicit EncodeScratch(size_t bytes) : words(bytes) {}
  // Keeps a text until the call ends, as the words point into it.
  std::string_view Keep(std::string text) { return kept.emplace_back(std::move(text)); }

  WordCache words;
  std::deque<std::string> kept;
  std::vector<MergeSymbol> symbols;
  std::vector<TextSpan> spans;
};

}  // namespace gyre
