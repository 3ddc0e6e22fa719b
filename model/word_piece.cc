#include "model/word_piece.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "model/normalizer.h"
#include "model/piece_trie.h"
#include "model/sentence_pieces.h"
#include "model/utf8.h"

namespace gyre {
namespace {

constexpr size_t kMostCharacters = 100;  // of a word

bool IsControl(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_CN || (category >= UTF8PROC_CATEGORY_CC && category <= UTF8PROC_CATEGORY_CO);
}

// ASCII's symbols count, too.
bool IsPunctuation(char32_t c) {
  if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126)) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

// The blocks that BERT's authors call Chinese.
bool IsChinese(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kBlocks[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                                       {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B820, 0x2CEAF},
                                                       {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                     [c](const auto& block) { return c >= block.first && c <= block.second; });
}

class WordPieceTokenizer : public VocabularyTokenizer {
 public:
  WordPieceTokenizer(Vocabulary v, TokenId unknown, bool lowercase)
      : VocabularyTokenizer(std::move(v)), unknown_(unknown), begin_(TrieOf(v_, true)), inside_(TrieOf(v_, false)) {
    if (lowercase) {
      steps_ = {{.kind = NormalizerStep::Kind::kForm, .form = UnicodeForm::kNfd},
                {.kind = NormalizerStep::Kind::kStripAccents},
                {.kind = NormalizerStep::Kind::kLowercase}};
    }
    AddNormalizedTokens();
  }

  const std::string& kind() const override {
    static const std::string kKind = "wordpiece";
    return kKind;
  }

  std::string Piece(TokenId id, bool at_start) const override {
    if (!Known(id) || type(id) == TokenType::kControl) return "";
    const std::string_view piece = v_.piece(static_cast<size_t>(id));
    if (!piece.starts_with(kMetaSpace)) return std::string(piece);
    return (at_start ? "" : " ") + std::string(piece.substr(kMetaSpace.size()));
  }

 protected:
  std::string_view Normal(std::string_view span, EncodeScratch* scratch) const override {
    return steps_.empty() ? span : scratch->Keep(Normalize(span, steps_));
  }

  void EncodePlain(std::string_view text, bool, EncodeScratch*, std::vector<TokenId>* out) const override {
    std::string word;
    size_t characters = 0;
    const auto end = [&] {
      if (characters > 0) EncodeWord(word, characters, out);
      word.clear();
      characters = 0;
    };
    for (size_t at = 0, n = 0; at < text.size(); at += std::max<size_t>(n, 1)) {
      n = ValidUtf8Length(text, at);
      if (n == 0) continue;
      const char32_t c = Utf8Decode(text, at, n);
      if (c == 0xFFFD || IsControl(c)) continue;
      const bool alone = IsPunctuation(c) || IsChinese(c);
      if (alone || IsWhiteSpace(c)) end();
      if (IsWhiteSpace(c)) continue;
      word += text.substr(at, n);
      ++characters;
      if (alone) end();
    }
    end();
  }

 private:
  void EncodeWord(std::string_view word, size_t characters, std::vector<TokenId>* out) const {
    const size_t before = out->size();
    for (size_t at = 0; at < word.size();) {
      PieceTrie::Match longest;
      if (characters <= kMostCharacters) longest = (at == 0 ? begin_ : inside_).Longest(word.substr(at));
      if (longest.length == 0) {
        out->resize(before);
        out->push_back(unknown_);
        return;
      }
      out->push_back(longest.id);
      at += longest.length;
    }
  }

  // The pieces that begin words, or the others.
  static PieceTrie TrieOf(const Vocabulary& v, bool begins) {
    std::vector<std::pair<std::string_view, TokenId>> pieces;
    for (size_t id = 0; id < v.size(); ++id) {
      std::string_view piece = v.piece(id);
      if (v.types[id] != TokenType::kNormal || piece.starts_with(kMetaSpace) != begins) continue;
      if (begins) piece.remove_prefix(kMetaSpace.size());
      pieces.emplace_back(piece, static_cast<TokenId>(id));
    }
    return PieceTrie(std::move(pieces));
  }

  const TokenId unknown_;
  std::vector<NormalizerStep> steps_;
  const PieceTrie begin_, inside_;
};

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> MakeWordPieceTokenizer(Vocabulary v, TokenId unknown, bool lowercase) {
  GYRE_RETURN_IF_ERROR(v.Validate());
  if (unknown < 0 || static_cast<size_t>(unknown) >= v.size())
    return DataLoss("the unknown token is {}, of a vocabulary of {}", unknown, v.size());
  GYRE_RETURN_IF_ERROR(v.CheckLengths());
  return std::unique_ptr<Tokenizer>(std::make_unique<WordPieceTokenizer>(std::move(v), unknown, lowercase));
}

StatusOr<std::unique_ptr<Tokenizer>> WordPieceFromGguf(const Gguf& gguf) {
  GYRE_ASSIGN_OR_RETURN(Vocabulary v, VocabularyFromGguf(gguf, true));
  const int64_t last = static_cast<int64_t>(v.size()) - 1;
  // A special token by its keys, of which one is written as llama.cpp misspells it, else by its name.
  const auto special = [&](std::initializer_list<const char*> keys,
                           std::string_view name) -> StatusOr<std::optional<TokenId>> {
    for (const char* key : keys) {
      GYRE_ASSIGN_OR_RETURN(const auto id, gguf.Int(key, 0, last));
      if (id) return std::optional(static_cast<TokenId>(*id));
    }
    for (size_t id = 0; id < v.size(); ++id) {
      if (v.piece(id) == name) return std::optional(static_cast<TokenId>(id));
    }
    return std::optional<TokenId>();
  };
  GYRE_ASSIGN_OR_RETURN(const auto unknown, special({"tokenizer.ggml.unknown_token_id"}, "[UNK]"));
  GYRE_ASSIGN_OR_RETURN(const auto begin,
                        special({"tokenizer.ggml.cls_token_id", "tokenizer.ggml.bos_token_id"}, "[CLS]"));
  GYRE_ASSIGN_OR_RETURN(const auto end, special({"tokenizer.ggml.seperator_token_id",
                                                 "tokenizer.ggml.separator_token_id", "tokenizer.ggml.eos_token_id"},
                                                "[SEP]"));
  if (!unknown) return DataLoss("the vocabulary has no unknown token");
  v.types[static_cast<size_t>(*unknown)] = TokenType::kUnknown;
  bool capitals = false;
  for (size_t id = 0; id < v.size() && !capitals; ++id) {
    capitals = v.types[id] == TokenType::kNormal &&
               std::any_of(v.piece(id).begin(), v.piece(id).end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  }
  if (v.prefix.empty() && v.suffix.empty() && v.add_bos) {
    if (begin) v.prefix = {*begin};
    if (end) v.suffix = {*end};
  }
  return MakeWordPieceTokenizer(std::move(v), *unknown, !capitals);
}

}  // namespace gyre
