#include "model/tokenizer_bin.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/bpe.h"
#include "model/spm.h"
#include "model/vocabulary.h"

namespace gyre {
namespace {

// Token 0 is unknown, 1 and 2 begin and end the text, 3 to 258 are the bytes.
StatusOr<std::unique_ptr<Tokenizer>> Spm(Vocabulary v) {
  for (size_t id = 0; id < v.size(); ++id) {
    const std::string_view piece = v.piece(id);
    if (id == 0) v.types[id] = TokenType::kUnknown;
    if (id == 1 || id == 2) v.types[id] = TokenType::kControl;
    if (id >= 3 && id < 259 && piece.size() == 6 && piece.substr(0, 3) == "<0x") v.types[id] = TokenType::kByte;
  }
  v.bos = 1;
  v.eos = 2;
  v.end_ids = {2};
  return MakeSpmTokenizer(std::move(v), {.meta_space = false});
}

// Llama 3: special tokens have names, or come after the 128,000 of the text.
StatusOr<std::unique_ptr<Tokenizer>> Ranked(Vocabulary v) {
  auto special = [&](size_t id) {
    const std::string_view piece = v.piece(id);
    return id >= 128000 || (piece.size() > 4 && piece.substr(0, 2) == "<|" && piece.substr(piece.size() - 2) == "|>");
  };
  for (size_t id = 0; id < v.size(); ++id) {
    if (!special(id)) continue;
    v.types[id] = TokenType::kControl;
    const auto token = static_cast<TokenId>(id);
    if (v.piece(id) == "<|begin_of_text|>") v.bos = token;
    if (v.piece(id) == "<|end_of_text|>") v.eos = token;
    if (EndsByName(v.piece(id))) v.end_ids.push_back(token);
  }
  if (v.size() > 128009 && v.bos < 0) {  // written without names
    v.bos = 128000;
    v.eos = 128001;
    v.end_ids = {128001, 128008, 128009};
  }
  GYRE_ASSIGN_OR_RETURN(const PreTokenizer pre, PreTokenizerByName("llama3"));
  const std::vector<BpeMerge> merges = MergesByRank(v);
  return MakeBpeTokenizer(std::move(v), merges, pre);
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromBin(std::span<const std::byte> file, int vocab) {
  if (file.size() > std::numeric_limits<uint32_t>::max()) return DataLoss("{} bytes are no tokenizer.bin", file.size());
  Vocabulary v;
  const size_t pieces = std::min<size_t>(static_cast<size_t>(vocab), file.size() / 8);
  v.Reserve(file.size(), pieces);
  v.scores.reserve(pieces);
  size_t at = 4;
  for (int id = 0; id < vocab; ++id) {
    float score = 0;
    uint32_t length = 0;
    if (file.size() < 8 || at > file.size() - 8)
      return DataLoss("offset {}: token {} of {} is cut short", at, id, vocab);
    std::memcpy(&score, file.data() + at, 4);
    std::memcpy(&length, file.data() + at + 4, 4);
    at += 8;
    if (length > file.size() - at) {
      return DataLoss("offset {}: token {} takes {} bytes, the file has {} left", at, id, length, file.size() - at);
    }
    if (std::isnan(score)) return DataLoss("token {}: the score is no number", id);
    v.Add(std::string_view(reinterpret_cast<const char*>(file.data()) + at, length), TokenType::kNormal);
    v.scores.push_back(score);
    at += length;
  }
  if (at != file.size()) return DataLoss("{} bytes follow the {} tokens of the model", file.size() - at, vocab);
  return v.size() > 1 && v.scores.back() > v.scores.front() ? Ranked(std::move(v)) : Spm(std::move(v));
}

}  // namespace gyre
