#include "model/tokenizer.h"

namespace gyre {

std::string Tokenizer::Decode(const std::vector<TokenId>& ids, bool control_texts, size_t most) const {
  std::string text;
  bool start = true;
  for (TokenId id : ids) {
    const bool control = type(id) == TokenType::kControl;
    text += control && control_texts ? Text(id) : Piece(id, start);
    if (text.size() > most) break;
    // Most tokenizers put a space before every span that follows a special token.
    start = starts_after_special() && (control || type(id) == TokenType::kUserDefined);
  }
  return text;
}

std::string Tokenizer::Bytes(TokenId id, bool control_texts) const {
  return control_texts && type(id) == TokenType::kControl ? Text(id) : Piece(id);
}

}  // namespace gyre
