// A reader of Hugging Face's tokenizer.json. Source: the tokenizers library's serialized form.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/bpe.h"
#include "model/hf/config.h"
#include "model/spm.h"
#include "model/unigram.h"
#include "model/vocabulary.h"

namespace gyre {

struct HfTokenizer {
  Vocabulary vocabulary;         // byte-level: pieces as bytes
  bool byte_level = false;       // false: a SentencePiece kind, with scores
  std::vector<BpeMerge> merges;  // byte-level
  PreTokenizer pre;              // byte-level
  std::string pre_name;          // its row of the table, "" = none has these expressions
  SpmOptions spm;
  std::optional<UnigramOptions> unigram;  // set if it is a unigram tokenizer
};

// `settings` is tokenizer_config.json together with config.json's token ids (empty: neither). kUnimplemented: an
// unknown model, step or key; kDataLoss: a merge that refers to a missing token, ids with gaps.
StatusOr<HfTokenizer> ReadTokenizerJson(const boost::json::object& tokenizer, const boost::json::object& settings,
                                        int vocab);

StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(HfTokenizer t);

// Writes tokenizer.ggml.* for a GGUF file. kUnimplemented: expressions that no row of the table has, or normalizers
// that GGUF has no keys for.
Status WriteTokenizer(const HfTokenizer& t, Metadata* out);

}  // namespace gyre
