#include "model/rwkv_tokenizer.h"

#include <utility>
#include <vector>

#include "model/piece_trie.h"
#include "model/quoted.h"

namespace gyre {
namespace {

constexpr size_t kLongestRwkvPiece = 1024;  // bytes; the time per byte of text grows with it

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class RwkvTokenizer : public VocabularyTokenizer {
 public:
  explicit RwkvTokenizer(Vocabulary v) : VocabularyTokenizer(std::move(v)) {
    std::vector<std::pair<std::string_view, TokenId>> pieces;
    for (size_t id = 0; id < v_.size(); ++id) {
      if (v_.types[id] == TokenType::kNormal) pieces.emplace_back(v_.piece(id), static_cast<TokenId>(id));
    }
    pieces_ = PieceTrie(std::move(pieces));
  }

  const std::string& kind() const override {
    static const std::string kKind = "rwkv";
    return kKind;
  }

  std::string Piece(TokenId id, bool) const override {
    if (!Known(id) || type(id) == TokenType::kControl || type(id) == TokenType::kUnused) return "";
    return std::string(v_.piece(static_cast<size_t>(id)));
  }

 protected:
  void EncodePlain(std::string_view text, bool, EncodeScratch*, std::vector<TokenId>* out) const override {
    while (!text.empty()) {
      size_t longest = 0;
      TokenId piece = -1;
      pieces_.ForEachPrefix(text, [&](size_t length, TokenId id) { longest = length, piece = id; });
      if (longest > 0) out->push_back(piece);
      text.remove_prefix(longest > 0 ? longest : 1);
    }
  }

 private:
  PieceTrie pieces_;
};

}  // namespace

StatusOr<std::string> RwkvBytes(std::string_view spelled) {
  std::string out;
  for (size_t i = 0; i < spelled.size(); ++i) {
    if (spelled[i] != '\\') {
      out += spelled[i];
      continue;
    }
    const char kind = i + 1 < spelled.size() ? spelled[++i] : '\0';
    if (kind == 'x' && i + 2 < spelled.size() && HexDigit(spelled[i + 1]) >= 0 && HexDigit(spelled[i + 2]) >= 0) {
      out += static_cast<char>(HexDigit(spelled[i + 1]) * 16 + HexDigit(spelled[i + 2]));
      i += 2;
    } else if (kind == 't' || kind == 'n' || kind == 'r') {
      out += kind == 't' ? '\t' : kind == 'n' ? '\n' : '\r';
    } else if (kind == '\\' || kind == '\'' || kind == '"') {
      out += kind;
    } else {
      return DataLoss("the piece {} has a backslash that means nothing", Printable(spelled));
    }
  }
  return out;
}

StatusOr<std::unique_ptr<Tokenizer>> MakeRwkvTokenizer(Vocabulary v) {
  GYRE_RETURN_IF_ERROR(v.Validate());
  for (size_t id = 0; id < v.size(); ++id) {
    if (v.piece(id).size() > kLongestRwkvPiece)
      return DataLoss("the piece of token {} has {} bytes, expected at most {}", id, v.piece(id).size(),
                      kLongestRwkvPiece);
  }
  return std::unique_ptr<Tokenizer>(std::make_unique<RwkvTokenizer>(std::move(v)));
}

StatusOr<std::unique_ptr<Tokenizer>> RwkvTokenizerFromGguf(const Gguf& gguf) {
  GYRE_ASSIGN_OR_RETURN(Vocabulary v, VocabularyFromGguf(gguf, false));
  Status wrong;
  Vocabulary bytes = v.Respelled([&](std::string_view piece, TokenType type) {
    if (type != TokenType::kNormal) return std::string(piece);
    auto spelled = RwkvBytes(piece);
    if (!spelled.ok()) wrong = spelled.status();
    return spelled.ok() ? *std::move(spelled) : std::string();
  });
  GYRE_RETURN_IF_ERROR(wrong);
  return MakeRwkvTokenizer(std::move(bytes));
}

}  // namespace gyre
