#include "model/bpe.h"

#include <array>

#include "absl/container/flat_hash_map.h"
#include "model/merge.h"
#include "model/quoted.h"
#include "model/utf8.h"
#include "model/whole_pieces.h"

namespace gyre {
namespace {

constexpr size_t kMaxMerges = size_t{1} << 24;  // so that ranks are exact as floats

using PieceMap = absl::flat_hash_map<absl::string_view, TokenId>;

absl::string_view Key(std::string_view text) { return {text.data(), text.size()}; }

// Maps bytes to the pieces that merging can make; of equal ones the first counts.
PieceMap MapPieces(const Vocabulary& v) {
  PieceMap ids;
  ids.reserve(v.size());
  for (size_t id = 0; id < v.size(); ++id) {
    if (v.types[id] == TokenType::kNormal && !v.piece(id).empty())
      ids.emplace(Key(v.piece(id)), static_cast<TokenId>(id));
  }
  for (const auto& [piece, id] : v.also) ids.emplace(Key(piece), id);
  return ids;
}

TokenId Find(const PieceMap& ids, std::string_view piece) {
  const auto it = ids.find(Key(piece));
  return it == ids.end() ? -1 : it->second;
}

// Maps bytes to code points: printable Latin-1 stays, the others follow from U+0100.
const std::array<char32_t, 256>& ByteCharacters() {
  static const std::array<char32_t, 256> table = [] {
    std::array<char32_t, 256> t{};
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      t[b] = printable ? b : next++;
    }
    return t;
  }();
  return table;
}

class BpeTokenizer : public VocabularyTokenizer {
 public:
  BpeTokenizer(Vocabulary v, const std::vector<BpeMerge>& merges, const PreTokenizer& pre, PreSplit split,
               PreSplit after_spelling)
      : VocabularyTokenizer(std::move(v)),
        steps_(pre.steps),
        prefix_space_(pre.prefix_space),
        ignore_merges_(pre.ignore_merges),
        fuse_unknown_(pre.fuse_unknown),
        split_(std::move(split)),
        after_spelling_(std::move(after_spelling)),
        whole_(v_.size()) {
    AddNormalizedTokens();
    ids_ = MapPieces(v_);
    for (unsigned b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      bytes_[b] = Find(ids_, std::string_view(&byte, 1));
    }
    ranks_.reserve(merges.size());
    for (const BpeMerge& m : merges)
      ranks_.emplace(PairKey(m.left, m.right), Ranked{static_cast<int32_t>(ranks_.size()), m.merged});
    for (size_t id = 0; id < v_.size() && unknown_ < 0; ++id) {
      if (v_.types[id] == TokenType::kUnknown) unknown_ = static_cast<TokenId>(id);
    }
  }

  const std::string& kind() const override {
    static const std::string kKind = "bpe";
    return kKind;
  }
  std::string Piece(TokenId id, bool) const override {
    if (!Known(id) || type(id) == TokenType::kControl || type(id) == TokenType::kUnknown) return "";
    return std::string(v_.piece(static_cast<size_t>(id)));
  }

 protected:
  std::string_view Normal(std::string_view span, EncodeScratch* scratch) const override {
    return steps_.empty() ? span : scratch->Keep(Normalize(span, steps_));
  }

  void EncodePlain(std::string_view text, bool, EncodeScratch* scratch, std::vector<TokenId>* out) const override {
    if (prefix_space_ && text[0] != ' ') text = scratch->Keep(" " + std::string(text));
    std::vector<TextSpan>& spans = scratch->spans;
    split_.Split(text, &spans);
    if (!after_spelling_.empty()) SplitSpelling(text, &spans);
    auto encode = [&](std::string_view word, std::vector<TokenId>* ids) { EncodeSpan(word, &scratch->symbols, ids); };
    for (const TextSpan& s : spans) scratch->words.Append(text.substr(s.begin, s.end - s.begin), out, encode);
  }

 private:
  struct Ranked {
    int32_t rank;
    TokenId merged;
  };
  static uint64_t PairKey(TokenId left, TokenId right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
  }

  // Cuts each span further, at what the expressions find in the spelling of its bytes, a character for each.
  void SplitSpelling(std::string_view text, std::vector<TextSpan>* spans) const {
    std::vector<TextSpan> before, parts;
    before.swap(*spans);
    for (const TextSpan& s : before) {
      const std::string spelled = SpellingOfBytes(text.substr(s.begin, s.end - s.begin));
      after_spelling_.Split(spelled, &parts);
      size_t at = 0, byte = s.begin;
      const auto byte_of = [&](size_t place) {  // the places only rise
        for (; at < place; at += Utf8Length(spelled, at)) ++byte;
        return byte;
      };
      for (const TextSpan& p : parts) {
        const size_t begin = byte_of(p.begin);
        spans->push_back({begin, byte_of(p.end)});
      }
    }
  }

  void EncodeSpan(std::string_view text, std::vector<MergeSymbol>* symbols, std::vector<TokenId>* out) const {
    const TokenId whole = Find(ids_, text);
    if (whole >= 0 && (ignore_merges_ || whole_.Is(whole, [&] {
          Merge(text, symbols);
          return symbols->size() == 1 && symbols->front().id == whole;
        }))) {
      out->push_back(whole);
      return;
    }
    Merge(text, symbols);
    bool fuse = false;
    for (const MergeSymbol& s : *symbols) {
      const TokenId id = s.id >= 0 ? s.id : unknown_;
      // Without an unknown token a byte that the vocabulary lacks is dropped.
      if (id >= 0 && !(fuse && s.id < 0)) out->push_back(id);
      fuse = fuse_unknown_ && s.id < 0;
    }
  }

  void Merge(std::string_view text, std::vector<MergeSymbol>* symbols) const {
    symbols->clear();
    for (size_t i = 0; i < text.size(); ++i) {
      symbols->push_back({.begin = i, .length = 1, .id = bytes_[static_cast<uint8_t>(text[i])]});
    }
    MergePairs(symbols, [this](const MergeSymbol& left, const MergeSymbol& right) -> PairRank {
      const auto it = ranks_.find(PairKey(left.id, right.id));
      return it == ranks_.end() ? PairRank{}
                                : PairRank{.rank = static_cast<float>(it->second.rank), .id = it->second.merged};
    });
  }

  const std::vector<NormalizerStep> steps_;
  const bool prefix_space_, ignore_merges_, fuse_unknown_;
  const PreSplit split_, after_spelling_;
  PieceMap ids_;  // into v_.text
  absl::flat_hash_map<uint64_t, Ranked> ranks_;
  std::array<TokenId, 256> bytes_{};
  TokenId unknown_ = -1;
  WholePieces whole_;
};

}  // namespace

std::string BytesOfSpelling(std::string_view spelled) {
  static const absl::flat_hash_map<char32_t, uint8_t> bytes = [] {
    absl::flat_hash_map<char32_t, uint8_t> map;
    for (unsigned b = 0; b < 256; ++b) map.emplace(ByteCharacters()[b], static_cast<uint8_t>(b));
    return map;
  }();
  std::string out;
  out.reserve(spelled.size());
  for (size_t at = 0; at < spelled.size();) {
    const size_t length = ValidUtf8Length(spelled, at);
    const auto it = length == 0 ? bytes.end() : bytes.find(Utf8Decode(spelled, at, length));
    if (it != bytes.end()) {
      out.push_back(static_cast<char>(it->second));
    } else {
      out += spelled.substr(at, std::max<size_t>(length, 1));
    }
    at += std::max<size_t>(length, 1);
  }
  return out;
}

std::string SpellingOfBytes(std::string_view bytes) {
  std::string out;
  for (char c : bytes) AppendUtf8(ByteCharacters()[static_cast<uint8_t>(c)], &out);
  return out;
}

StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(Vocabulary v, const std::vector<BpeMerge>& merges,
                                                      const PreTokenizer& pre) {
  GYRE_RETURN_IF_ERROR(v.Validate());
  const auto n = static_cast<TokenId>(v.size());
  if (merges.size() > kMaxMerges) return DataLoss("{} merges, expected at most {}", merges.size(), kMaxMerges);
  for (const BpeMerge& m : merges) {
    for (TokenId id : {m.left, m.right, m.merged}) {
      if (id < 0 || id >= n) return DataLoss("a merge names token {} of a vocabulary of {}", id, n);
    }
  }
  GYRE_ASSIGN_OR_RETURN(PreSplit split, PreSplit::Compile(pre.patterns));
  GYRE_ASSIGN_OR_RETURN(PreSplit after, PreSplit::Compile(pre.after_spelling));
  return std::unique_ptr<Tokenizer>(
      std::make_unique<BpeTokenizer>(std::move(v), merges, pre, std::move(split), std::move(after)));
}

struct MergeReader::Rep {
  PieceMap ids;
  std::vector<BpeMerge> merges;
};
MergeReader::MergeReader(const Vocabulary& vocabulary) : rep_(std::make_unique<Rep>()) {
  rep_->ids = MapPieces(vocabulary);
}
MergeReader::~MergeReader() = default;
std::vector<BpeMerge> MergeReader::Take() { return std::move(rep_->merges); }

Status MergeReader::Add(std::string_view left, std::string_view right) {
  const std::string l = BytesOfSpelling(left), r = BytesOfSpelling(right);
  const BpeMerge m{.left = Find(rep_->ids, l), .right = Find(rep_->ids, r), .merged = Find(rep_->ids, l + r)};
  if (m.left < 0 || m.right < 0 || m.merged < 0) {
    return DataLoss("merge {} \"{} {}\" needs the token \"{}\", which the vocabulary has not", rep_->merges.size(),
                    Printable(left), Printable(right),
                    Printable(m.left < 0    ? l
                              : m.right < 0 ? r
                                            : l + r));
  }
  rep_->merges.push_back(m);
  return absl::OkStatus();
}

Status MergeReader::Add(std::string_view line) {
  const size_t space = line.find(' ', 1);
  if (line.size() < 3 || space == std::string_view::npos || space + 1 == line.size()) {
    return DataLoss("merge {} is \"{}\", expected two tokens and a space between", rep_->merges.size(),
                    Printable(line));
  }
  return Add(line.substr(0, space), line.substr(space + 1));
}

std::vector<BpeMerge> MergesByRank(const Vocabulary& v) {
  const PieceMap ids = MapPieces(v);
  std::vector<BpeMerge> merges;
  for (size_t id = 0; id < v.size(); ++id) {
    if (v.types[id] != TokenType::kNormal) continue;
    const std::string_view piece = v.piece(id);
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      const TokenId left = Find(ids, piece.substr(0, cut)), right = Find(ids, piece.substr(cut));
      if (left >= 0 && right >= 0) merges.push_back({.left = left, .right = right, .merged = static_cast<TokenId>(id)});
    }
  }
  return merges;
}

StatusOr<std::unique_ptr<Tokenizer>> BpeFromGguf(const Gguf& gguf) {
  GYRE_ASSIGN_OR_RETURN(const auto name, gguf.String("tokenizer.ggml.pre"));
  if (!name) return Unimplemented("key tokenizer.ggml.pre is missing: how this tokenizer cuts text is not said");
  GYRE_ASSIGN_OR_RETURN(const PreTokenizer pre, PreTokenizerByName(*name));
  GYRE_ASSIGN_OR_RETURN(const Vocabulary spelled, VocabularyFromGguf(gguf, pre.add_bos));
  Vocabulary v = spelled.Respelled([](std::string_view piece, TokenType type) {
    return type == TokenType::kNormal ? BytesOfSpelling(piece) : std::string(piece);
  });
  for (size_t id = 0; id < v.size(); ++id) {
    if (v.types[id] == TokenType::kUserDefined)
      v.also.emplace_back(BytesOfSpelling(v.piece(id)), static_cast<TokenId>(id));
  }
  GYRE_ASSIGN_OR_RETURN(const GgufValue* lines, gguf.Array("tokenizer.ggml.merges", GgufType::kString));
  if (lines == nullptr) return DataLoss("key tokenizer.ggml.merges is missing");
  MergeReader reader(v);
  Status bad;
  ForEachString(*lines, [&](uint64_t, std::string_view line) {
    if (bad.ok()) bad = Annotate(reader.Add(line), "tokenizer.ggml.merges");
  });
  GYRE_RETURN_IF_ERROR(bad);
  return MakeBpeTokenizer(std::move(v), reader.Take(), pre);
}

}  // namespace gyre
