// Normalizes text before it is split into pieces: a list of steps, as in tokenizer.json and in SentencePiece's
// own rules.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/charsmap.h"
#include "model/text_pattern.h"
#include "model/unicode_form.h"

namespace gyre {

struct NormalizerStep {
  enum class Kind : uint8_t {
    kCharsmap,
    kReplace,         // every `from` by `to`
    kReplacePattern,  // every match of `pattern` by `to`
    kReplaceSpaces,   // two and more spaces by `to`
    kPrepend,         // `to` before a text that is not empty
    kForm,
    kLowercase,
    kNmt,                 // SentencePiece's "nmt": leaves out control characters, other white space becomes spaces
    kStripAccents,        // leaves out combining marks
    kStrip,               // white space at the ends
    kCollapseSpaces,      // several spaces are one, none at the ends
    kCollapseWhiteSpace,  // the same for Unicode's white space, which becomes a space
  };
  Kind kind = Kind::kReplace;
  std::string from, to;
  std::shared_ptr<const Charsmap> charsmap;
  std::shared_ptr<const TextPattern> pattern;
  UnicodeForm form = UnicodeForm::kNfc;
  bool left = false, right = false;  // kStrip
};

// Unicode's White_Space.
bool IsWhiteSpace(char32_t c);

// Invalid UTF-8 passes through every step. Thread-safe.
std::string Normalize(std::string_view text, const std::vector<NormalizerStep>& steps);

}  // namespace gyre
