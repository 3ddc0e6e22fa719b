#include "model/spm.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "model/merge.h"
#include "model/utf8.h"

namespace gyre {
namespace {

constexpr std::string_view kMetaSpace = "\xE2\x96\x81";  // U+2581

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0;;) {
    const size_t next = text.find(from, at);
    out += text.substr(at, next - at);
    if (next == std::string_view::npos) return out;
    out += to;
    at = next + from.size();
  }
}

class SpmTokenizer : public VocabularyTokenizer {
 public:
  SpmTokenizer(Vocabulary v, const SpmOptions& options) : VocabularyTokenizer(std::move(v)), options_(options) {
    bytes_.fill(-1);
    ids_.reserve(v_.size());
    for (size_t id = 0; id < v_.size(); ++id) {
      const std::string_view piece = v_.piece(id);
      const auto token = static_cast<TokenId>(id);
      switch (v_.types[id]) {
        case TokenType::kByte:
          if (const auto b = ByteOfPiece(piece)) bytes_[*b] = token;
          break;
        case TokenType::kUnknown:
          if (unknown_ < 0) unknown_ = token;
          break;
        case TokenType::kUserDefined:
        case TokenType::kControl:
        case TokenType::kUnused:
          break;
        case TokenType::kNormal:
          if (!piece.empty()) ids_.emplace(Key(piece), token);
          longest_ = std::max(longest_, piece.size());
      }
    }
  }

  const std::string& kind() const override {
    static const std::string kKind = "spm";
    return kKind;
  }

  std::string Piece(TokenId id, bool at_start) const override {
    if (!Known(id)) return "";
    const auto i = static_cast<size_t>(id);
    const std::string_view piece = v_.piece(i);
    if (v_.types[i] == TokenType::kControl || v_.types[i] == TokenType::kUnknown) return "";
    if (v_.types[i] == TokenType::kByte) {
      const auto b = ByteOfPiece(piece);
      return b ? std::string(1, static_cast<char>(*b)) : std::string();
    }
    std::string text = options_.meta_space ? ReplaceAll(piece, kMetaSpace, " ") : std::string(piece);
    if (at_start && options_.add_space_prefix && !text.empty() && text[0] == ' ') text.erase(0, 1);
    return text;
  }

 protected:
  // Stored user-defined tokens have plain spaces; a literal U+2581 counts as a space too.
  std::string Prepare(std::string_view text) const override {
    return options_.meta_space ? ReplaceAll(text, kMetaSpace, " ") : std::string(text);
  }

  // The space is put before every stretch between special tokens, not only the first: the published behaviour of the
  // models that have a prefix.
  void EncodePlain(std::string_view text, std::vector<TokenId>* out) const override {
    std::string normal = options_.add_space_prefix ? " " : "";
    normal += text;
    if (options_.meta_space) normal = ReplaceAll(normal, " ", kMetaSpace);
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
  // "<0x4A>" -> 0x4A.
  static std::optional<uint8_t> ByteOfPiece(std::string_view piece) {
    if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
    unsigned value = 0;
    for (char c : piece.substr(3, 2)) {
      const char upper = c >= 'a' && c <= 'f' ? static_cast<char>(c - 'a' + 'A') : c;
      const size_t digit = std::string_view("0123456789ABCDEF").find(upper);
      if (digit == std::string_view::npos) return std::nullopt;
      value = value * 16 + static_cast<unsigned>(digit);
    }
    return static_cast<uint8_t>(value);
  }
  static absl::string_view Key(std::string_view text) { return {text.data(), text.size()}; }
  TokenId IdOf(std::string_view piece) const {
    const auto it = ids_.find(Key(piece));
    return it == ids_.end() ? -1 : it->second;
  }
  void EmitBytes(std::string_view piece, std::vector<TokenId>* out) const {
    bool said_unknown = false;
    for (char c : piece) {
      const TokenId byte = bytes_[static_cast<uint8_t>(c)];
      if (byte >= 0) {
        out->push_back(byte);
      } else if (unknown_ >= 0 && !said_unknown) {
        out->push_back(unknown_);
        said_unknown = true;
      }
    }
  }

  const SpmOptions options_;
  absl::flat_hash_map<absl::string_view, TokenId> ids_;  // normal pieces, into v_.text
  size_t longest_ = 0;                                   // bytes of a normal piece
  std::array<TokenId, 256> bytes_;
  TokenId unknown_ = -1;
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
