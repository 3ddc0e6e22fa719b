// SentencePiece-style BPE: pieces with scores, merged best score first, bytes if no piece fits.
// Source: Kudo and Richardson 2018, and the piece conventions of its .model files as GGUF stores them.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/normalizer.h"
#include "model/presplit.h"
#include "model/vocabulary.h"

namespace gyre {

struct SpmOptions {
  bool add_space_prefix = true;
  bool prefix_first_only = false;    // not after special tokens
  bool prefix_unless_there = false;  // not before a text that begins with a space
  bool meta_space = true;            // a space is stored as U+2581
  bool split_words = false;          // no piece reaches over the beginning of a word
  // What a tokenizer.json says further. With `as_json` special tokens are searched in the text as it is, and Decode
  // drops the first space where `drop_space`; else user-defined tokens are stored with plain spaces, and Decode drops
  // the space that Encode puts first.
  bool as_json = false, drop_space = false;
  std::vector<NormalizerStep> steps;  // they put the space first that Decode drops, or the fields above do
  std::vector<SplitStep> patterns;    // each is applied to every span that the one before left
  bool replace_spaces = true;         // by U+2581, if meta_space
};

// kDataLoss: the vocabulary has no scores, or is not valid; for patterns the errors of PreSplit::Compile.
StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(Vocabulary vocabulary, SpmOptions options);
// Turns a list of merges, best first, into scores by which pieces merge in the same order: a piece's score is the first
// rank that makes it.
class MergeScores {
 public:
  // Sets the scores of `vocabulary`, which outlives the object and keeps its pieces.
  explicit MergeScores(Vocabulary* vocabulary);
  ~MergeScores();
  // kDataLoss: the vocabulary does not have the two pieces joined.
  Status Add(std::string_view left, std::string_view right);
  // Marks longer pieces that no merge makes as unused, as merging must never make them.
  void Finish();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// Reads tokenizer.ggml.* with model "gemma4": merges in place of scores, and no space before the text.
StatusOr<std::unique_ptr<Tokenizer>> MergedSpmFromGguf(const Gguf& gguf);
// Reads tokenizer.ggml.* with model "llama".
StatusOr<std::unique_ptr<Tokenizer>> SpmFromGguf(const Gguf& gguf);

}  // namespace gyre
