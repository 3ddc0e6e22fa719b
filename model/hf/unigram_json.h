// The normalizers and pre-tokenizers of a unigram tokenizer in tokenizer.json.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/hf/config.h"
#include "model/unigram.h"
#include "model/vocabulary.h"

namespace gyre {

// `root`: the whole file. kUnimplemented: an unknown normalizer or pre-tokenizer, by its name; kDataLoss: one lacks a
// required value.
StatusOr<UnigramOptions> ReadUnigramOptions(const boost::json::object& root);

// Writes tokenizer.ggml.*; pieces that are never found become unused in `types`. kUnimplemented: steps that GGUF has no
// keys for.
Status WriteUnigramOptions(const UnigramOptions& options, const Vocabulary& v, std::vector<int32_t>* types,
                           Metadata* out);

}  // namespace gyre
