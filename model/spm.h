// SentencePiece-style BPE: pieces with scores, merged best score first, bytes where no piece fits.
// Source: Kudo and Richardson 2018, and the piece conventions of its .model files as GGUF stores them.
#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "model/gguf.h"
#include "model/vocabulary.h"

namespace gyre {

struct SpmOptions {
  bool add_space_prefix = true;
  bool prefix_first_only = false;  // not after special tokens
  bool meta_space = true;          // a space is stored as U+2581
};

// kDataLoss: a vocabulary without scores, or one that is not valid.
StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(Vocabulary vocabulary, const SpmOptions& options);
// tokenizer.ggml.* with model "llama".
StatusOr<std::unique_ptr<Tokenizer>> SpmFromGguf(const Gguf& gguf);

}  // namespace gyre
