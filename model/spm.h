// SentencePiece-style BPE: pieces with scores, merged best score first, bytes where no piece fits.
// Source: Kudo and Richardson 2018, and the piece conventions of its .model files as GGUF stores them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

namespace gyre {

struct SpmVocabulary {
  std::string text;               // all pieces, one after the other
  std::vector<uint32_t> offsets;  // [size + 1] into text
  std::vector<float> scores;
  std::vector<TokenType> types;
  TokenId bos = -1, eos = -1;
  std::vector<TokenId> end_ids;  // ids that end a generation
  bool add_bos = true, add_eos = false;
  bool add_space_prefix = true;
  bool meta_space = true;  // a space is stored as U+2581

  size_t size() const { return scores.size(); }
  std::string_view piece(size_t id) const {
    return std::string_view(text).substr(offsets[id], offsets[id + 1] - offsets[id]);
  }
  // So that no buffer grows past what a file's size accounts for.
  void Reserve(size_t text_bytes, size_t pieces) {
    text.reserve(text_bytes);
    offsets.reserve(pieces + 1);
    scores.reserve(pieces);
    types.reserve(pieces);
  }
  void Add(std::string_view piece, float score, TokenType type) {
    if (offsets.empty()) offsets.push_back(0);
    text += piece;
    offsets.push_back(static_cast<uint32_t>(text.size()));
    scores.push_back(score);
    types.push_back(type);
  }
};

StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(SpmVocabulary vocabulary);
// tokenizer.ggml.* with model "llama".
StatusOr<std::unique_ptr<Tokenizer>> SpmFromGguf(const Gguf& gguf);
// llama2.c's tokenizer.bin for a model of `vocab` tokens. Its spaces are plain.
StatusOr<std::unique_ptr<Tokenizer>> SpmFromBin(std::span<const std::byte> file, int vocab);

}  // namespace gyre
