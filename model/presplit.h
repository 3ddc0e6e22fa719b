// Splits text into the spans within which byte-level BPE may merge: by one regular expression, or several in
// succession, as the models' publishers give them in tokenizer.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/normalizer.h"
#include "model/word_cache.h"

namespace gyre {

// A cut of text, as tokenizer.json's pre-tokenizers have it.
struct SplitStep {
  enum class Behavior : uint8_t {
    kIsolated,            // each match is a span
    kRemoved,             // matches are left out
    kContiguous,          // matches in a row are one span
    kMergedWithPrevious,  // a match belongs to the text before it
    kMergedWithNext,
  };
  SplitStep(std::string expression, Behavior b = Behavior::kIsolated, bool inverted = false)
      : pattern(std::move(expression)), behavior(b), invert(inverted) {}
  std::string pattern;
  Behavior behavior;
  bool invert;  // the text between matches counts as matches, and they as the text between
};

// The preparation of text in a family: one row of the table of tokenizer.ggml.pre, or what a tokenizer.json says.
struct PreTokenizer {
  std::vector<NormalizerStep> steps;
  bool prefix_space = false;              // before a text that begins with none
  std::vector<SplitStep> patterns;        // each is applied to every span that the one before left
  std::vector<SplitStep> after_spelling;  // the same in GPT-2's spelling of the bytes (model/bpe.h)
  bool ignore_merges = false;             // a span that is a token is taken whole
  bool fuse_unknown = false;              // unknown bytes in a row are one token
  bool add_bos = false;                   // where the file does not say
};

// kUnimplemented; the message lists the known names.
StatusOr<PreTokenizer> PreTokenizerByName(std::string_view name);
// The row that treats text in the same way; "" = none.
std::string PreTokenizerName(const PreTokenizer& pre);

// Immutable, thread-safe. Bytes that are not UTF-8 belong to no match.
class PreSplit {
 public:
  // Errors as those of TextPattern::Compile (model/text_pattern.h).
  static StatusOr<PreSplit> Compile(const std::vector<SplitStep>& steps);
  PreSplit(PreSplit&&) noexcept;
  PreSplit& operator=(PreSplit&&) noexcept;
  ~PreSplit();

  bool empty() const;
  // The spans of the text, in their order.
  void Split(std::string_view text, std::vector<TextSpan>* spans) const;

 private:
  struct Step;
  PreSplit();
  std::vector<Step> steps_;
};

}  // namespace gyre
