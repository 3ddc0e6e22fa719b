#include "model/spm.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "model/merge.h"
#include "model/sentence_pieces.h"
#include "model/utf8.h"

namespace gyre {
namespace {

class SpmTokenizer : public SentencePieceTokenizer {
 public:
  SpmTokenizer(Vocabulary v, const SpmOptions& options)
      : SentencePieceTokenizer(std::move(v), options.meta_space, options.add_space_prefix) {
    ids_.reserve(v_.size());
    for (size_t id = 0; id < v_.size(); ++id) {
      const std::string_view piece = v_.piece(id);
      if (v_.types[id] != TokenType::kNormal || piece.empty()) continue;
      ids_.emplace(Key(piece), static_cast<TokenId>(id));
      longest_ = std::max(longest_, piece.size());
    }
  }

  const std::string& kind() const override {
    static const std::string kKind = "spm";
    return kKind;
  }

 protected:
  // Stored user-defined tokens have plain spaces; a literal U+2581 counts as a space too.
  std::string Prepare(std::string_view text) const override {
    return meta_space_ ? ReplaceAll(text, kMetaSpace, " ") : std::string(text);
  }

  // The space is put before every stretch between special tokens, not only the first: the published behaviour of the
  // models that have a prefix.
  void EncodePlain(std::string_view text, std::vector<TokenId>* out) const override {
    std::string normal = space_first_ ? " " : "";
    normal += text;
    if (meta_space_) normal = ReplaceAll(normal, " ", kMetaSpace);
    const std::string_view all(normal);
    std::vector<MergeSymbol> symbols;
    symbols.reserve(all.size());
    for (size_t at = 0; at < all.size();) {
      const size_t length = Utf8Length(all, at);
      symbols.push_back({.begin = at, .length = length, .id = IdOf(all.substr(at, length))});
      at += length;
    }
    MergePairs(&symbols, [&](const MergeSymbol& left, const MergeSymbol& right) -> PairRank {
      if (left.length + right.length > longest_) return {};
      const TokenId id = IdOf(all.substr(left.begin, left.length + right.length));
      return id < 0 ? PairRank{} : PairRank{.rank = -v_.scores[static_cast<size_t>(id)], .id = id};
    });
    for (const MergeSymbol& s : symbols) {
      if (s.id >= 0) {
        out->push_back(s.id);
      } else {
        EmitBytes(all.substr(s.begin, s.length), out);
      }
    }
  }

 private:
  static absl::string_view Key(std::string_view text) { return {text.data(), text.size()}; }
  TokenId IdOf(std::string_view piece) const {
    const auto it = ids_.find(Key(piece));
    return it == ids_.end() ? -1 : it->second;
  }

  absl::flat_hash_map<absl::string_view, TokenId> ids_;  // normal pieces, into v_.text
  size_t longest_ = 0;                                   // bytes of a normal piece
};

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(Vocabulary v, const SpmOptions& options) {
  GYRE_RETURN_IF_ERROR(v.Validate());
  if (v.scores.size() != v.size()) return DataLoss("{} scores for {} tokens", v.scores.size(), v.size());
  return std::unique_ptr<Tokenizer>(std::make_unique<SpmTokenizer>(std::move(v), options));
}

StatusOr<std::unique_ptr<Tokenizer>> SpmFromGguf(const Gguf& gguf) {
  GYRE_ASSIGN_OR_RETURN(Vocabulary v, VocabularyFromGguf(gguf, true));
  if (v.scores.empty() && v.size() > 0) return DataLoss("key tokenizer.ggml.scores is missing");
  GYRE_ASSIGN_OR_RETURN(const auto add_space, gguf.Bool("tokenizer.ggml.add_space_prefix"));
  return MakeSpmTokenizer(std::move(v), {.add_space_prefix = add_space.value_or(true)});
}

}  // namespace gyre
