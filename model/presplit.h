// Splits text into the stretches within which byte-level BPE may merge: by one regular expression, or several in
// succession, as the models' publishers give them in tokenizer.json.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gyre {

// The preparation of text in a family: one row of the table of tokenizer.ggml.pre.
struct PreTokenizer {
  std::vector<std::string> patterns;  // each is applied to every stretch that the one before left
  bool nfc = false;                   // Unicode normal form C first
  bool ignore_merges = false;         // a stretch that is a token is taken whole
  bool add_bos = false;               // where the file does not say
};

// kUnimplemented; the message lists the known names.
StatusOr<PreTokenizer> PreTokenizerByName(std::string_view name);
// The row with the same expressions, normal form and treatment of whole tokens; "" = none.
std::string PreTokenizerName(const PreTokenizer& pre);

// Immutable, thread-safe. PCRE2, compiled; `\s` is Unicode's White_Space. Bytes that are not UTF-8 belong to no match.
class PreSplit {
 public:
  // kInvalidArgument: an invalid regular expression, with PCRE2's message.
  static StatusOr<PreSplit> Compile(const std::vector<std::string>& patterns);
  PreSplit(PreSplit&&) noexcept;
  PreSplit& operator=(PreSplit&&) noexcept;
  ~PreSplit();

  // The ends of the stretches, rising, the last one text.size(): matches, and the text between them.
  void Split(std::string_view text, std::vector<size_t>* ends) const;

 private:
  struct Pattern;
  PreSplit();
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

}  // namespace gyre
