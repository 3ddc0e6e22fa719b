#include "model/spm.h"

#include <algorithm>
#include <array>

#include "absl/container/flat_hash_map.h"
#include "model/merge.h"
#include "model/quoted.h"
#include "model/sentence_pieces.h"
#include "model/utf8.h"
#include "model/whole_pieces.h"

namespace gyre {
namespace {

class SpmTokenizer : public SentencePieceTokenizer {
 public:
  SpmTokenizer(Vocabulary v, SpmOptions options, PreSplit split)
      : SentencePieceTokenizer(std::move(v), options.meta_space,
                               options.as_json ? options.drop_space : options.add_space_prefix,
                               !options.prefix_first_only),
        o_(std::move(options)),
        split_(std::move(split)),
        whole_(v_.size()) {
    AddNormalizedTokens();
    single_.fill(-1);
    ids_.reserve(v_.size());
    for (size_t id = 0; id < v_.size(); ++id) {
      const std::string_view piece = v_.piece(id);
      if (v_.types[id] != TokenType::kNormal || piece.empty()) continue;
      AddPiece(piece, static_cast<TokenId>(id));
    }
    for (const auto& [piece, id] : v_.also) AddPiece(piece, id);
  }

  const std::string& kind() const override {
    static const std::string kKind = "spm";
    return kKind;
  }

 protected:
  // User-defined tokens are stored with plain spaces; a literal U+2581 counts as a space too.
  std::string Prepare(std::string_view text) const override {
    return meta_space_ && !o_.as_json ? ReplaceAll(text, kMetaSpace, " ") : std::string(text);
  }
  std::string_view Normal(std::string_view span, EncodeScratch* scratch) const override {
    return o_.steps.empty() ? span : scratch->Keep(Normalize(span, o_.steps));
  }

  // The space is put before every span between special tokens, which is the published behaviour of most models that
  // have a prefix, or before the first alone.
  void EncodePlain(std::string_view text, bool first, EncodeScratch* scratch,
                   std::vector<TokenId>* out) const override {
    const bool replaces = meta_space_ && o_.replace_spaces;
    const bool there = text[0] == ' ' || (replaces && text.substr(0, kMetaSpace.size()) == kMetaSpace);
    const bool prefix = o_.add_space_prefix && (first || !o_.prefix_first_only) && !(o_.prefix_unless_there && there);
    if (prefix || replaces) {
      std::string normal = prefix ? " " : "";
      normal += text;
      text = scratch->Keep(replaces ? ReplaceAll(normal, " ", kMetaSpace) : std::move(normal));
    }
    if (split_.empty()) return EncodeWords(text, scratch, out);
    split_.Split(text, &scratch->spans);
    for (const TextSpan& s : scratch->spans) EncodeWords(text.substr(s.begin, s.end - s.begin), scratch, out);
  }

 private:
  static absl::string_view Key(std::string_view text) { return {text.data(), text.size()}; }
  std::string_view Space() const { return meta_space_ ? kMetaSpace : std::string_view(" "); }
  TokenId IdOf(std::string_view piece) const {
    if (piece.size() == 1) return single_[static_cast<uint8_t>(piece[0])];
    const auto it = ids_.find(Key(piece));
    return it == ids_.end() ? -1 : it->second;
  }

  void AddPiece(std::string_view piece, TokenId token) {
    if (piece.size() == 1 && single_[static_cast<uint8_t>(piece[0])] < 0)
      single_[static_cast<uint8_t>(piece[0])] = token;
    ids_.emplace(Key(piece), token);
    for (size_t at = 0; (at = piece.find(Space(), at + 1)) != std::string_view::npos;)
      before_space_[static_cast<uint8_t>(piece[at - 1])] = true;
    longest_ = std::max(longest_, piece.size());
  }

  void EncodeWords(std::string_view all, EncodeScratch* scratch, std::vector<TokenId>* out) const {
    const std::string_view space = Space();
    auto encode = [&](std::string_view word, std::vector<TokenId>* ids) { EncodeWord(word, &scratch->symbols, ids); };
    for (size_t begin = 0; begin < all.size();) {
      size_t end = begin;
      do {
        end = std::min(all.find(space, end + 1), all.size());
      } while (!o_.split_words && end < all.size() && before_space_[static_cast<uint8_t>(all[end - 1])]);
      scratch->words.Append(all.substr(begin, end - begin), out, encode);
      begin = end;
    }
  }

  // A word is a span that no piece joins to its neighbours, so merging it alone gives the same result as in context.
  void EncodeWord(std::string_view word, std::vector<MergeSymbol>* symbols, std::vector<TokenId>* out) const {
    const TokenId whole = word.size() <= longest_ ? IdOf(word) : -1;
    if (whole >= 0 && whole_.Is(whole, [&] {
          Merge(word, symbols);
          return symbols->size() == 1;
        })) {
      out->push_back(whole);
      return;
    }
    Merge(word, symbols);
    for (const MergeSymbol& s : *symbols) {
      if (s.id >= 0) {
        out->push_back(s.id);
      } else {
        EmitBytes(word.substr(s.begin, s.length), out);
      }
    }
  }

  void Merge(std::string_view word, std::vector<MergeSymbol>* symbols) const {
    symbols->clear();
    for (size_t at = 0; at < word.size();) {
      const size_t length = Utf8Length(word, at);
      symbols->push_back({.begin = at, .length = length, .id = IdOf(word.substr(at, length))});
      at += length;
    }
    MergePairs(symbols, [&](const MergeSymbol& left, const MergeSymbol& right) -> PairRank {
      if (left.length + right.length > longest_) return {};
      const TokenId id = IdOf(word.substr(left.begin, left.length + right.length));
      return id < 0 ? PairRank{} : PairRank{.rank = -v_.scores[static_cast<size_t>(id)], .id = id};
    });
  }

  absl::flat_hash_map<absl::string_view, TokenId> ids_;  // normal pieces, into v_.text
  size_t longest_ = 0;                                   // bytes of a normal piece
  std::array<TokenId, 256> single_;                      // pieces of one byte, -1 = none
  std::array<bool, 256> before_space_{};                 // bytes that a space follows in some piece
  const SpmOptions o_;
  const PreSplit split_;
  WholePieces whole_;
};

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(Vocabulary v, SpmOptions options) {
  GYRE_RETURN_IF_ERROR(v.Validate());
  if (v.scores.size() != v.size()) return DataLoss("{} scores for {} tokens", v.scores.size(), v.size());
  GYRE_ASSIGN_OR_RETURN(PreSplit split, PreSplit::Compile(options.patterns));
  return std::unique_ptr<Tokenizer>(std::make_unique<SpmTokenizer>(std::move(v), std::move(options), std::move(split)));
}

// Up to this number ranks are exact as floats.
constexpr size_t kMostMerges = size_t{1} << 24;

struct MergeScores::Rep {
  Vocabulary* vocabulary;
  absl::flat_hash_map<std::string, TokenId> ids;
  std::vector<bool> scored;
  float rank = 0;
};

MergeScores::MergeScores(Vocabulary* vocabulary) : rep_(std::make_unique<Rep>()) {
  const size_t n = vocabulary->size();
  rep_->vocabulary = vocabulary;
  rep_->scored.resize(n);
  rep_->ids.reserve(n);
  vocabulary->scores.assign(n, 0);
  for (size_t id = 0; id < n; ++id) {
    // User-defined tokens, which are stored with plain spaces, can be results of merges too.
    const bool plain = vocabulary->types[id] == TokenType::kUserDefined;
    const std::string_view piece = vocabulary->piece(id);
    rep_->ids.emplace(plain ? ReplaceAll(piece, " ", kMetaSpace) : std::string(piece), static_cast<TokenId>(id));
  }
}
MergeScores::~MergeScores() = default;

Status MergeScores::Add(std::string_view left, std::string_view right) {
  const std::string both = std::string(left) + std::string(right);
  const auto it = rep_->ids.find(both);
  if (it == rep_->ids.end()) {
    return DataLoss("\"{} {}\" gives the token \"{}\", which the vocabulary has not", Printable(left), Printable(right),
                    Printable(both));
  }
  const auto id = static_cast<size_t>(it->second);
  rep_->rank -= 1;
  if (!rep_->scored[id]) rep_->vocabulary->scores[id] = rep_->rank;
  rep_->scored[id] = true;
  return absl::OkStatus();
}

void MergeScores::Finish() {
  Vocabulary& v = *rep_->vocabulary;
  for (size_t id = 0; id < v.size(); ++id) {
    if (!rep_->scored[id] && v.types[id] == TokenType::kNormal && Utf8Length(v.piece(id), 0) < v.piece(id).size())
      v.types[id] = TokenType::kUnused;
  }
  std::erase_if(v.also, [&](const auto& piece) {
    return !rep_->scored[static_cast<size_t>(piece.second)] && Utf8Length(piece.first, 0) < piece.first.size();
  });
}

StatusOr<std::unique_ptr<Tokenizer>> MergedSpmFromGguf(const Gguf& gguf) {
  GYRE_ASSIGN_OR_RETURN(const Vocabulary stored, VocabularyFromGguf(gguf, true));
  Vocabulary v = stored.Respelled([](std::string_view piece, TokenType type) {
    return type == TokenType::kUserDefined ? ReplaceAll(piece, kMetaSpace, " ") : std::string(piece);
  });
  GYRE_ASSIGN_OR_RETURN(const GgufValue* lines, gguf.Array("tokenizer.ggml.merges", GgufType::kString));
  if (lines == nullptr) return DataLoss("key tokenizer.ggml.merges is missing");
  if (lines->count > kMostMerges) return DataLoss("tokenizer.ggml.merges has {} entries", lines->count);
  MergeScores scores(&v);
  Status bad;
  ForEachString(*lines, [&](uint64_t, std::string_view line) {
    const size_t space = line.find(' ', 1);
    if (!bad.ok()) return;
    bad = space == std::string_view::npos || space + 1 == line.size()
              ? DataLoss("{} is no pair", Printable(line))
              : scores.Add(line.substr(0, space), line.substr(space + 1));
    bad = Annotate(bad, "tokenizer.ggml.merges");
  });
  GYRE_RETURN_IF_ERROR(bad);
  scores.Finish();
  GYRE_ASSIGN_OR_RETURN(const auto add_space, gguf.Bool("tokenizer.ggml.add_space_prefix"));
  return MakeSpmTokenizer(std::move(v), {.add_space_prefix = add_space.value_or(false)});
}

StatusOr<std::unique_ptr<Tokenizer>> SpmFromGguf(const Gguf& gguf) {
  GYRE_ASSIGN_OR_RETURN(Vocabulary v, VocabularyFromGguf(gguf, true));
  if (v.scores.empty() && v.size() > 0) return DataLoss("key tokenizer.ggml.scores is missing");
  GYRE_ASSIGN_OR_RETURN(const auto add_space, gguf.Bool("tokenizer.ggml.add_space_prefix"));
  GYRE_ASSIGN_OR_RETURN(const auto first_only, gguf.Bool(kPrefixFirstOnlyKey));
  GYRE_ASSIGN_OR_RETURN(const auto unless_there, gguf.Bool(kPrefixUnlessThereKey));
  GYRE_ASSIGN_OR_RETURN(const auto split_words, gguf.Bool(kSplitWordsKey));
  return MakeSpmTokenizer(std::move(v), {.add_space_prefix = add_space.value_or(true),
                                         .prefix_first_only = first_only.value_or(false),
                                         .prefix_unless_there = unless_there.value_or(false),
                                         .split_words = split_words.value_or(false)});
}

}  // namespace gyre
