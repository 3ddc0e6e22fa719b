// What tokenizer.json says about the text of a unigram tokenizer: its normalizers and pre-tokenizers.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/hf/config.h"
#include "model/unigram.h"
#include "model/vocabulary.h"

namespace gyre {

// `root`: the whole file. kUnimplemented: a normalizer or pre-tokenizer that is not known, by its name; kDataLoss: one
// without what it needs.
StatusOr<UnigramOptions> ReadUnigramOptions(const boost::json::object& root);

// As tokenizer.ggml.*; pieces that are never found become unused in `types`. kUnimplemented: steps that GGUF has no
// keys for.
Status WriteUnigramOptions(const UnigramOptions& options, const Vocabulary& v, std::vector<int32_t>* types,
                           Metadata* out);

}  // namespace gyre
