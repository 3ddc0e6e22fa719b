#include "model/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace gyre {
namespace {
constexpr size_t kMaxVocabulary = size_t{1} << 24;
}

Status Vocabulary::Validate() const {
  if (size() == 0) return DataLoss("the vocabulary is empty");
  const auto n = static_cast<TokenId>(size());
  if (bos < -1 || eos < -1 || bos >= n || eos >= n) {
    return DataLoss("begin and end tokens {} and {} are not in a vocabulary of {}", bos, eos, n);
  }
  return absl::OkStatus();
}

bool EndsByName(std::string_view piece) {
  for (std::string_view name : {"</s>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>",
                                "<|end_of_text|>", "<|eom_id|>", "<|eot|>", "<|END_OF_TURN_TOKEN|>", "<|return|>",
                                "<\xEF\xBD\x9C"
                                "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                "<|EOT|>", "<turn|>", "<seed:eos>", "[e~[", "<|call|>"}) {
    if (piece == name) return true;
  }
  return false;
}

void AddEndsByName(Vocabulary* v) {
  std::vector<TokenId> ends;
  bool returns = false, calls = false;
  for (size_t id = 0; id < v->size(); ++id) {
    const std::string_view piece = v->piece(id);
    if (v->types[id] != TokenType::kControl) continue;
    returns = returns || piece == "<|return|>";
    calls = calls || piece == "<|call|>";
    if (EndsByName(piece)) ends.push_back(static_cast<TokenId>(id));
  }
  for (const TokenId id : ends) {
    if (!(returns && calls && v->piece(static_cast<size_t>(id)) == "<|end|>")) v->end_ids.push_back(id);
  }
}

StatusOr<Vocabulary> VocabularyFromGguf(const Gguf& gguf, bool add_bos) {
  GYRE_ASSIGN_OR_RETURN(const GgufValue* tokens, gguf.Array("tokenizer.ggml.tokens", GgufType::kString));
  GYRE_ASSIGN_OR_RETURN(const GgufValue* scores, gguf.Array("tokenizer.ggml.scores", GgufType::kF32));
  GYRE_ASSIGN_OR_RETURN(const GgufValue* types, gguf.Array("tokenizer.ggml.token_type", GgufType::kI32));
  if (tokens == nullptr) return DataLoss("key tokenizer.ggml.tokens is missing");
  if (tokens->count > kMaxVocabulary) return DataLoss("tokenizer.ggml.tokens has {} entries", tokens->count);
  if (scores != nullptr && scores->count != tokens->count) {
    return DataLoss("tokenizer.ggml.scores has {} entries, expected {}", scores->count, tokens->count);
  }
  if (types != nullptr && types->count != tokens->count) {
    return DataLoss("tokenizer.ggml.token_type has {} entries, expected {}", types->count, tokens->count);
  }
  if (tokens->bytes.size() > std::numeric_limits<uint32_t>::max()) {
    return DataLoss("tokenizer.ggml.tokens takes {} bytes", tokens->bytes.size());
  }
  Vocabulary v;
  v.Reserve(tokens->bytes.size(), tokens->count);
  if (scores != nullptr) {
    v.scores.resize(tokens->count);
    if (tokens->count > 0) std::memcpy(v.scores.data(), scores->bytes.data(), 4 * tokens->count);
  }
  Status bad;
  ForEachString(*tokens, [&](uint64_t i, std::string_view piece) {
    int32_t type = 1;
    if (types != nullptr) std::memcpy(&type, types->bytes.data() + 4 * i, 4);
    if ((type < 1 || type > 6) && bad.ok())
      bad = DataLoss("tokenizer.ggml.token_type: entry {} is {}, expected 1 to 6", i, type);
    if (scores != nullptr && std::isnan(v.scores[i]) && bad.ok())
      bad = DataLoss("tokenizer.ggml.scores: entry {} is no number", i);
    const auto token_type = static_cast<TokenType>(std::clamp(type, 1, 6));
    v.Add(piece, token_type);
  });
  GYRE_RETURN_IF_ERROR(bad);
  AddEndsByName(&v);
  const auto last = static_cast<int64_t>(v.size()) - 1;
  // Converters write -1 as u32 for a token that the vocabulary does not have.
  auto id = [&](const char* key) -> StatusOr<std::optional<int64_t>> {
    GYRE_ASSIGN_OR_RETURN(const auto any, gguf.Int(key, -1, std::numeric_limits<uint32_t>::max()));
    if (any && (*any == -1 || *any == std::numeric_limits<uint32_t>::max())) return std::optional<int64_t>();
    return gguf.Int(key, 0, last);
  };
  GYRE_ASSIGN_OR_RETURN(const auto bos, id("tokenizer.ggml.bos_token_id"));
  GYRE_ASSIGN_OR_RETURN(const auto eos, id("tokenizer.ggml.eos_token_id"));
  v.bos = static_cast<TokenId>(bos.value_or(-1));
  v.eos = static_cast<TokenId>(eos.value_or(-1));
  if (v.eos >= 0) v.end_ids.push_back(v.eos);
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    GYRE_ASSIGN_OR_RETURN(const auto end, id(key));
    if (end) v.end_ids.push_back(static_cast<TokenId>(*end));
  }
  GYRE_ASSIGN_OR_RETURN(const auto says_bos, gguf.Bool("tokenizer.ggml.add_bos_token"));
  GYRE_ASSIGN_OR_RETURN(const auto says_eos, gguf.Bool("tokenizer.ggml.add_eos_token"));
  v.add_bos = says_bos.value_or(add_bos);
  v.add_eos = says_eos.value_or(false);
  return v;
}

VocabularyTokenizer::VocabularyTokenizer(Vocabulary v) : v_(std::move(v)) {
  for (size_t id = 0; id < v_.size(); ++id) {
    if (v_.types[id] == TokenType::kUserDefined) user_defined_.Add(v_.piece(id), static_cast<TokenId>(id));
    if (v_.types[id] == TokenType::kUserDefined || v_.types[id] == TokenType::kControl) {
      specials_.Add(v_.piece(id), static_cast<TokenId>(id));
    }
  }
}

bool VocabularyTokenizer::IsEndOfGeneration(TokenId id) const {
  return std::find(v_.end_ids.begin(), v_.end_ids.end(), id) != v_.end_ids.end();
}

std::vector<TokenId> VocabularyTokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> out;
  if (options.add_special && add_bos()) out.push_back(v_.bos);
  const std::string prepared = Prepare(text);
  const std::string_view all(prepared);
  const SpecialTrie& trie = options.parse_special ? specials_ : user_defined_;
  EncodeScratch scratch(all.size());
  size_t begin = 0;
  auto plain = [&](size_t end) {
    const std::string_view stretch = all.substr(begin, end - begin);
    if (stretch.empty()) return;
    if (options.guard.empty() || stretch.find(options.guard) == std::string_view::npos) {
      return EncodePlain(stretch, begin == 0, &scratch, &out);
    }
    std::string free;
    for (size_t at = 0; at < stretch.size();) {
      const size_t next = std::min(stretch.find(options.guard, at), stretch.size());
      free += stretch.substr(at, next - at);
      at = next + options.guard.size();
    }
    if (!free.empty()) EncodePlain(scratch.Keep(std::move(free)), begin == 0, &scratch, &out);
  };
  for (size_t at = 0; at < all.size();) {
    const auto [special, length] = trie.LongestAt(all, at);
    if (special < 0) {
      ++at;
      continue;
    }
    plain(at);
    out.push_back(special);
    at += length;
    begin = at;
  }
  plain(all.size());
  if (options.add_special && add_eos()) out.push_back(v_.eos);
  return out;
}

}  // namespace gyre
