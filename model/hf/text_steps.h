// The normalizers of a tokenizer.json, and those of its pre-tokenizers that cut text. Source: the tokenizers library's
// serialized form.
#pragma once

#include <optional>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/normalizer.h"
#include "model/presplit.h"

namespace gyre {

// `root`: the whole file. kUnimplemented: an unknown normalizer, by its name, or a kind of one; kDataLoss: one lacks a
// required value.
StatusOr<std::vector<NormalizerStep>> ReadNormalizers(const boost::json::object& root);

// Whether the steps change nothing but spaces: U+2581 in their place, and one put first.
bool ChangeSpacesOnly(const std::vector<NormalizerStep>& steps);
// Steps that put U+2581 first and in the place of spaces, as SentencePiece does.
bool IsMetaPrefix(const NormalizerStep& step);
bool IsMetaReplace(const NormalizerStep& step);

// A pre-tokenizer that cuts text: Split, Digits, Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit; nullopt
// for other types. Errors as above.
StatusOr<std::optional<SplitStep>> ReadSplitStep(const boost::json::object& step);

}  // namespace gyre
