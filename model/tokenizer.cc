#include "model/tokenizer.h"

namespace gyre {

std::string Tokenizer::Decode(const std::vector<TokenId>& ids) const {
  std::string text;
  bool start = true;
  for (TokenId id : ids) {
    text += Piece(id, start);
    start = start && type(id) == TokenType::kControl;
  }
  return text;
}

}  // namespace gyre
