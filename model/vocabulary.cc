#include "model/vocabulary.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "model/normalizer.h"
#include "model/utf8.h"

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

Status Vocabulary::CheckLengths() const {
  constexpr size_t kLongestPiece = 1024;  // bytes; the time per byte of text grows with it
  for (size_t id = 0; id < size(); ++id) {
    if (piece(id).size() > kLongestPiece)
      return DataLoss("the piece of token {} has {} bytes, expected at most {}", id, piece(id).size(), kLongestPiece);
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
    // "</s>" is a tag of HTML where it is a user's token.
    const bool users = v->types[id] == TokenType::kUserDefined && piece != "</s>";
    if (v->types[id] != TokenType::kControl && !users) continue;
    returns = returns || piece == "<|return|>";
    calls = calls || piece == "<|call|>";
    if (EndsByName(piece)) ends.push_back(static_cast<TokenId>(id));
  }
  for (const TokenId id : ends) {
    if (!(returns && calls && v->piece(static_cast<size_t>(id)) == "<|end|>")) v->end_ids.push_back(id);
  }
}

namespace {

Status ReadOwnKeys(const Gguf& gguf, Vocabulary* v) {
  const auto ids = [&](const char* key) -> StatusOr<std::vector<TokenId>> {
    GYRE_ASSIGN_OR_RETURN(const GgufValue* list, gguf.Array(key, GgufType::kI32));
    std::vector<TokenId> out(list == nullptr ? 0 : list->count);
    if (!out.empty()) std::memcpy(out.data(), list->bytes.data(), out.size() * sizeof(TokenId));
    for (const TokenId id : out) {
      if (id < 0 || static_cast<size_t>(id) >= v->size())
        return DataLoss("{} has the id {}, of a vocabulary of {}", key, id, v->size());
    }
    return out;
  };
  GYRE_ASSIGN_OR_RETURN(v->prefix, ids(kPrefixKey));
  GYRE_ASSIGN_OR_RETURN(v->suffix, ids(kSuffixKey));
  for (const auto& [key, field] : {std::pair(kStripLeftKey, &FindRule::strip_left),
                                   {kStripRightKey, &FindRule::strip_right},
                                   {kWholeWordKey, &FindRule::whole_word}}) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<TokenId> list, ids(key));
    for (const TokenId id : list) v->rules[id].*field = true;
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Vocabulary> VocabularyFromGguf(const Gguf& gguf, bool add_bos) {
  GYRE_ASSIGN_OR_RETURN(const GgufValue* tokens, gguf.Array("tokenizer.ggml.tokens", GgufType::kString));
  // Merges need no scores, and files that have them all the same have them in any type.
  GYRE_ASSIGN_OR_RETURN(const auto kind, gguf.String("tokenizer.ggml.model"));
  const GgufValue* scores = nullptr;
  if (kind == "llama" || kind == "t5") {
    GYRE_ASSIGN_OR_RETURN(scores, gguf.Array("tokenizer.ggml.scores", GgufType::kF32));
  }
  if (tokens == nullptr) return DataLoss("key tokenizer.ggml.tokens is missing");
  if (tokens->count > kMaxVocabulary) return DataLoss("tokenizer.ggml.tokens has {} entries", tokens->count);
  if (scores != nullptr && scores->count != tokens->count) {
    return DataLoss("tokenizer.ggml.scores has {} entries, expected {}", scores->count, tokens->count);
  }
  std::optional<std::vector<int64_t>> types;
  const auto stated = gguf.metadata().find("tokenizer.ggml.token_type");
  if (stated != gguf.metadata().end() && (stated->second.type != GgufType::kArray || stated->second.count > 0)) {
    GYRE_ASSIGN_OR_RETURN(types, gguf.Ints("tokenizer.ggml.token_type", tokens->count, 1, 6));
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
    if (scores != nullptr && std::isnan(v.scores[i]) && bad.ok())
      bad = DataLoss("tokenizer.ggml.scores: entry {} is no number", i);
    v.Add(piece, types ? static_cast<TokenType>((*types)[i]) : TokenType::kNormal);
  });
  GYRE_RETURN_IF_ERROR(bad);
  AddEndsByName(&v);
  // Files that call an end of a turn a user's token mean a control token: nobody's text is to hold one.
  for (const TokenId id : v.end_ids) v.types[static_cast<size_t>(id)] = TokenType::kControl;
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
  if (gguf.Has(kEndsKey)) {
    GYRE_ASSIGN_OR_RETURN(const GgufValue* ends, gguf.Array(kEndsKey, GgufType::kI32));
    for (uint64_t i = 0; i < ends->count; ++i) {
      int32_t end = 0;
      std::memcpy(&end, ends->bytes.data() + i * sizeof end, sizeof end);
      if (end < 0 || end > last) return DataLoss("{} has the id {}, expected 0 to {}", kEndsKey, end, last);
      v.end_ids.push_back(end);
    }
  }
  GYRE_ASSIGN_OR_RETURN(const auto says_bos, gguf.Bool("tokenizer.ggml.add_bos_token"));
  GYRE_ASSIGN_OR_RETURN(const auto says_eos, gguf.Bool("tokenizer.ggml.add_eos_token"));
  v.add_bos = says_bos.value_or(add_bos);
  v.add_eos = says_eos.value_or(false);
  GYRE_RETURN_IF_ERROR(ReadOwnKeys(gguf, &v));
  return v;
}

namespace {

// White space and word characters as Rust's expressions have them, by whose \s and \w the tokens are found.
bool IsWordCharacter(char32_t c) {
  if (c == 0x200C || c == 0x200D) return true;
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189))
    return true;  // letters in circles and squares
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC;
}
// The code point before or after a place; U+FFFD for bytes that are no character.
char32_t CharacterBefore(std::string_view text, size_t* at) {
  for (size_t n = 1; n <= std::min<size_t>(4, *at); ++n) {
    if (ValidUtf8Length(text.substr(0, *at), *at - n) != n) continue;
    *at -= n;
    return Utf8Decode(text, *at, n);
  }
  --*at;
  return 0xFFFD;
}
char32_t CharacterAt(std::string_view text, size_t* at) {
  const size_t n = ValidUtf8Length(text, *at);
  const char32_t c = n == 0 ? 0xFFFD : Utf8Decode(text, *at, n);
  *at += std::max<size_t>(n, 1);
  return c;
}
bool InWord(std::string_view text, size_t begin, size_t end) {
  size_t before = begin, after = end;
  return (begin > 0 && IsWordCharacter(CharacterBefore(text, &before))) ||
         (end < text.size() && IsWordCharacter(CharacterAt(text, &after)));
}

}  // namespace

void VocabularyTokenizer::Specials::Add(std::string_view piece, TokenId id, TokenType type) {
  if (type != TokenType::kUserDefined && type != TokenType::kControl) return;
  if (type == TokenType::kUserDefined) user_defined.Add(piece, id);
  all.Add(piece, id);
  empty = false;
}

VocabularyTokenizer::VocabularyTokenizer(Vocabulary v) : v_(std::move(v)) {
  for (size_t id = 0; id < v_.size(); ++id) {
    const FindRule* rule = Rule(static_cast<TokenId>(id));
    if (rule != nullptr && rule->normalized) continue;
    const bool control = v_.finds_unknown && v_.types[id] == TokenType::kUnknown;
    raw_.Add(v_.piece(id), static_cast<TokenId>(id), control ? TokenType::kControl : v_.types[id]);
  }
}

void VocabularyTokenizer::AddNormalizedTokens() {
  for (const auto& [id, rule] : v_.rules) {
    if (!rule.normalized || !Known(id)) continue;
    const auto i = static_cast<size_t>(id);
    EncodeScratch scratch(0);
    normalized_.Add(Normal(v_.piece(i), &scratch), id, v_.types[i]);
  }
}

const FindRule* VocabularyTokenizer::Rule(TokenId id) const {
  if (v_.rules.empty()) return nullptr;
  const auto it = v_.rules.find(id);
  return it == v_.rules.end() ? nullptr : &it->second;
}

bool VocabularyTokenizer::IsEndOfGeneration(TokenId id) const {
  return std::find(v_.end_ids.begin(), v_.end_ids.end(), id) != v_.end_ids.end();
}

template <typename Fn>
void VocabularyTokenizer::SplitAt(const SpecialTrie& trie, std::string_view text, std::vector<TokenId>* out,
                                  Fn span) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const auto [special, length] = trie.LongestAt(text, at);
    if (special < 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;
    if (const FindRule* rule = Rule(special)) {
      if (rule->whole_word && InWord(text, begin, end)) continue;
      for (size_t p = begin; rule->strip_left && p > done && IsWhiteSpace(CharacterBefore(text, &p));) begin = p;
      for (size_t p = end; rule->strip_right && p < text.size() && IsWhiteSpace(CharacterAt(text, &p));) end = p;
      at = end;
    }
    if (begin > done) span(done, begin);
    out->push_back(special);
    done = end;
  }
  if (done < text.size()) span(done, text.size());
}

std::vector<TokenId> VocabularyTokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> out;
  const bool adds = !v_.prefix.empty() || !v_.suffix.empty();
  if (options.add_special && adds) out = v_.prefix;
  if (options.add_special && !adds && add_bos()) out.push_back(v_.bos);
  const std::string prepared = Prepare(text);
  const std::string_view all(prepared);
  EncodeScratch scratch(all.size());
  // The span without the signs that kept its texts from being tokens.
  auto unguarded = [&](std::string_view span) {
    if (options.guard.empty() || span.find(options.guard) == std::string_view::npos) return span;
    std::string free;
    for (size_t at = 0; at < span.size();) {
      const size_t next = std::min(span.find(options.guard, at), span.size());
      free += span.substr(at, next - at);
      at = next + options.guard.size();
    }
    return scratch.Keep(std::move(free));
  };
  auto plain = [&](std::string_view span, bool first) {
    if (!span.empty()) EncodePlain(span, first, &scratch, &out);
  };
  SplitAt(raw_.trie(options.parse_special), all, &out, [&](size_t begin, size_t end) {
    const std::string_view span = all.substr(begin, end - begin);
    const bool first = begin == 0;
    if (normalized_.empty) return plain(Normal(unguarded(span), &scratch), first);
    const std::string_view normal = Normal(span, &scratch);
    SplitAt(normalized_.trie(options.parse_special), normal, &out,
            [&](size_t b, size_t e) { plain(unguarded(normal.substr(b, e - b)), first && b == 0); });
  });
  if (options.add_special && adds) out.insert(out.end(), v_.suffix.begin(), v_.suffix.end());
  if (options.add_special && !adds && add_eos()) out.push_back(v_.eos);
  return out;
}

}  // namespace gyre
