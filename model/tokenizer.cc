#include "model/tokenizer.h"

namespace gyre {

std::string Tokenizer::Decode(const std::vector<TokenId>& ids) const {
  std::string text;
  bool start = true;
  for (TokenId id : ids) {
    text += Piece(id, start);
    // Encode puts its space before every stretch that follows a special token.
    start = type(id) == TokenType::kControl || type(id) == TokenType::kUserDefined;
  }
  return text;
}

}  // namespace gyre
