// Byte-level BPE: text is split by the family's expression, and its bytes are merged by rank.
// Source: Radford et al. 2019 (GPT-2), and the spelling of its bytes in vocabulary files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/presplit.h"
#include "model/vocabulary.h"

namespace gyre {

struct BpeMerge {
  TokenId left = -1, right = -1, merged = -1;
};

// Normal pieces of the vocabulary are raw bytes; the best merge comes first. kDataLoss: ids outside the vocabulary;
// kInvalidArgument: an invalid expression.
StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(Vocabulary vocabulary, const std::vector<BpeMerge>& merges,
                                                      const PreTokenizer& pre);
// Reads tokenizer.ggml.* with model "gpt2".
StatusOr<std::unique_ptr<Tokenizer>> BpeFromGguf(const Gguf& gguf);

// The merges of a vocabulary whose ids are the ranks: every cut of a piece into two pieces, in the order of the pieces.
std::vector<BpeMerge> MergesByRank(const Vocabulary& vocabulary);

// GPT-2's spelling of bytes as printable characters, and back; a character outside it stays as it is.
std::string BytesOfSpelling(std::string_view spelled);
std::string SpellingOfBytes(std::string_view bytes);

// Collects merges written "left right" in that spelling; kDataLoss names the line and the token that is missing.
class MergeReader {
 public:
  // `vocabulary` with its pieces as bytes; outlives the reader.
  explicit MergeReader(const Vocabulary& vocabulary);
  ~MergeReader();
  Status Add(std::string_view left, std::string_view right);
  Status Add(std::string_view line);
  std::vector<BpeMerge> Take();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace gyre
