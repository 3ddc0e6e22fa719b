#include "model/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/piece_trie.h"
#include "model/sentence_pieces.h"
#include "model/utf8.h"

namespace gyre {
namespace {

constexpr double kUnknownPenalty = 10;  // how far an unknown character scores below the worst piece
constexpr size_t kMaxPiece = 1024;      // bytes; the time per byte of text grows with it

class UnigramTokenizer : public SentencePieceTokenizer {
 public:
  UnigramTokenizer(Vocabulary v, UnigramOptions options)
      : SentencePieceTokenizer(std::move(v), true, options.prefix != UnigramOptions::Prefix::kNone,
                               !options.prefix_first_only),
        options_(std::move(options)) {
    AddNormalizedTokens();
    std::vector<std::pair<std::string_view, TokenId>> pieces;
    double worst = std::numeric_limits<double>::infinity();
    for (size_t id = 0; id < v_.size(); ++id) {
      if (v_.types[id] != TokenType::kNormal) continue;
      worst = std::min(worst, static_cast<double>(v_.scores[id]));
      if (CanOccur(v_.piece(id))) pieces.emplace_back(v_.piece(id), static_cast<TokenId>(id));
    }
    for (const auto& [piece, id] : v_.also) {
      worst = std::min(worst, static_cast<double>(v_.scores[static_cast<size_t>(id)]));
      if (CanOccur(piece)) pieces.emplace_back(piece, id);
    }
    if (std::isfinite(worst)) unknown_score_ = worst - kUnknownPenalty;
    trie_ = PieceTrie(std::move(pieces));
  }

  const std::string& kind() const override {
    static const std::string kKind = "unigram";
    return kKind;
  }

 protected:
  // As in models that merge, every span between special tokens is normalized and encoded alone.
  std::string_view Normal(std::string_view span, EncodeScratch* scratch) const override {
    std::string normal = Normalize(span, options_.steps);
    if (options_.prefix == UnigramOptions::Prefix::kSpace && !options_.prefix_first_only && !normal.empty())
      normal.insert(0, 1, ' ');
    return scratch->Keep(std::move(normal));
  }

  void EncodePlain(std::string_view text, bool first, EncodeScratch*, std::vector<TokenId>* out) const override {
    std::string normal(text);
    const bool space = normal[0] == ' ' || std::string_view(normal).substr(0, kMetaSpace.size()) == kMetaSpace;
    if (first || !options_.prefix_first_only) {
      if ((options_.prefix == UnigramOptions::Prefix::kSpace && options_.prefix_first_only) ||
          (options_.prefix == UnigramOptions::Prefix::kSpaceUnlessThere && !space))
        normal.insert(0, 1, ' ');
    }
    EncodeNormal(ReplaceAll(normal, " ", kMetaSpace), out);
  }

 private:
  static constexpr TokenId kNothing = -2, kUnknown = -1;
  // The best way to cut the text up to the end of a piece.
  struct Best {
    double score = 0;
    uint32_t length = 0;  // of the piece
    TokenId id = kNothing;
  };

  // Pieces of invalid UTF-8 would end within characters; if words are split off, pieces that reach over a split never
  // occur.
  bool CanOccur(std::string_view piece) const {
    for (size_t at = 0; at < piece.size();) {
      const size_t length = ValidUtf8Length(piece, at);
      if (length == 0) return false;
      if (options_.split_words && at > 0 && piece.substr(at, length) == kMetaSpace) return false;
      at += length;
    }
    return true;
  }

  // The Viterbi algorithm. At a place that no piece reaches over, all ways meet: the part before is decided, and the
  // table begins anew. So the table is mostly as long as a word.
  void EncodeNormal(std::string_view text, std::vector<TokenId>* out) const {
    std::vector<Best> best(1);  // by end, from `begin`
    std::vector<std::pair<uint32_t, TokenId>> path;
    bool unknown_before = false;
    size_t begin = 0, reach = 0;
    for (size_t at = 0; at < text.size();) {
      if (at == reach) {
        Emit(text.substr(begin, at - begin), best, &path, &unknown_before, out);
        best.assign(1, Best{});
        begin = at;
        if (options_.split_words && text.substr(at, kMetaSpace.size()) == kMetaSpace) unknown_before = false;
      }
      const size_t character = Utf8Length(text, at);
      const double so_far = best[at - begin].score;
      bool has_character = false;
      auto consider = [&](size_t length, TokenId id, double score) {
        reach = std::max(reach, at + length);
        if (best.size() <= reach - begin) best.resize(reach - begin + 1);
        Best& b = best[at + length - begin];
        if (b.id == kNothing || so_far + score > b.score) b = {so_far + score, static_cast<uint32_t>(length), id};
      };
      trie_.ForEachPrefix(text.substr(at), [&](size_t length, TokenId id) {
        has_character = has_character || length == character;
        consider(length, id, v_.scores[static_cast<size_t>(id)]);
      });
      if (!has_character) consider(character, kUnknown, unknown_score_);
      at += character;
    }
    Emit(text.substr(begin), best, &path, &unknown_before, out);
  }

  // Emits the best way to the end of `text`, whose table is `best`.
  void Emit(std::string_view text, const std::vector<Best>& best, std::vector<std::pair<uint32_t, TokenId>>* path,
            bool* unknown_before, std::vector<TokenId>* out) const {
    path->clear();
    for (size_t at = text.size(); at > 0; at -= best[at].length) path->emplace_back(best[at].length, best[at].id);
    size_t at = 0;
    for (auto step = path->rbegin(); step != path->rend(); ++step) {
      const std::string_view piece = text.substr(at, step->first);
      at += step->first;
      if (step->second >= 0) {
        out->push_back(step->second);
        *unknown_before = false;
      } else if (HasBytes(piece)) {
        EmitBytes(piece, out);
        *unknown_before = false;
      } else if (!*unknown_before) {
        if (unknown() >= 0) out->push_back(unknown());
        *unknown_before = true;
      }
    }
  }

  const UnigramOptions options_;
  PieceTrie trie_;  // normal pieces
  double unknown_score_ = -kUnknownPenalty;
};

// The charsmap is an array of bytes, signed in some files.
StatusOr<std::string_view> CharsmapOf(const Gguf& gguf) {
  const auto it = gguf.metadata().find("tokenizer.ggml.precompiled_charsmap");
  if (it == gguf.metadata().end()) return std::string_view();
  const GgufType element = it->second.element == GgufType::kI8 ? GgufType::kI8 : GgufType::kU8;
  GYRE_ASSIGN_OR_RETURN(const GgufValue* bytes, gguf.Array(it->first, element));
  return std::string_view(reinterpret_cast<const char*>(bytes->bytes.data()), bytes->bytes.size());
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> MakeUnigramTokenizer(Vocabulary v, UnigramOptions options) {
  GYRE_RETURN_IF_ERROR(v.Validate());
  if (v.scores.size() != v.size()) return DataLoss("{} scores for {} tokens", v.scores.size(), v.size());
  for (size_t id = 0; id < v.size(); ++id) {
    if (v.types[id] != TokenType::kNormal) continue;
    if (!std::isfinite(v.scores[id]))
      return DataLoss("the score of token {} is {}, expected a number", id, v.scores[id]);
    if (v.piece(id).size() > kMaxPiece)
      return DataLoss("the piece of token {} has {} bytes, expected at most {}", id, v.piece(id).size(), kMaxPiece);
  }
  return std::unique_ptr<Tokenizer>(std::make_unique<UnigramTokenizer>(std::move(v), std::move(options)));
}

StatusOr<std::unique_ptr<Tokenizer>> UnigramFromGguf(const Gguf& gguf) {
  GYRE_ASSIGN_OR_RETURN(Vocabulary v, VocabularyFromGguf(gguf, false));
  if (v.scores.empty() && v.size() > 0) return DataLoss("key tokenizer.ggml.scores is missing");
  // These models add the end token unless the file says otherwise.
  GYRE_ASSIGN_OR_RETURN(const auto says_eos, gguf.Bool("tokenizer.ggml.add_eos_token"));
  v.add_eos = says_eos.value_or(true);
  const int64_t last = static_cast<int64_t>(v.size()) - 1;
  GYRE_ASSIGN_OR_RETURN(const auto unknown, gguf.Int("tokenizer.ggml.unknown_token_id", 0, last));
  if (unknown) v.types[static_cast<size_t>(*unknown)] = TokenType::kUnknown;
  UnigramOptions options;
  GYRE_ASSIGN_OR_RETURN(const std::string_view bytes, CharsmapOf(gguf));
  StatusOr<Charsmap> charsmap = Charsmap::Parse(bytes);
  GYRE_RETURN_IF_ERROR(Annotate(charsmap.status(), "tokenizer.ggml.precompiled_charsmap"));
  if (!charsmap->empty()) {
    options.steps.push_back(
        {.kind = NormalizerStep::Kind::kCharsmap, .charsmap = std::make_shared<const Charsmap>(*std::move(charsmap))});
  }
  GYRE_ASSIGN_OR_RETURN(const auto collapse, gguf.Bool("tokenizer.ggml.remove_extra_whitespaces"));
  if (collapse.value_or(false)) options.steps.push_back({.kind = NormalizerStep::Kind::kCollapseSpaces});
  GYRE_ASSIGN_OR_RETURN(const auto prefix, gguf.Bool("tokenizer.ggml.add_space_prefix"));
  if (!prefix.value_or(true)) options.prefix = UnigramOptions::Prefix::kNone;
  GYRE_ASSIGN_OR_RETURN(const auto first_only, gguf.Bool(kPrefixFirstOnlyKey));
  options.prefix_first_only = first_only.value_or(false);
  return MakeUnigramTokenizer(std::move(v), std::move(options));
}

}  // namespace gyre
