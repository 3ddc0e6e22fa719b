#include "model/rwkv_tokenizer.h"

#include <utility>
#include <vector>

#include "base/hex.h"
#include "model/piece_trie.h"
#include "model/quoted.h"

namespace gyre {
namespace {

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
      const PieceTrie::Match longest = pieces_.Longest(text);
      if (longest.length > 0) out->push_back(longest.id);
      text.remove_prefix(longest.length > 0 ? longest.length : 1);
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
    if (kind == 'x' && i + 2 < spelled.size() && HexValue(spelled[i + 1]) >= 0 && HexValue(spelled[i + 2]) >= 0) {
      out += static_cast<char>(HexValue(spelled[i + 1]) * 16 + HexValue(spelled[i + 2]));
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
  GYRE_RETURN_IF_ERROR(v.CheckLengths());
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
