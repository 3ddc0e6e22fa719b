#include "model/sentence_pieces.h"

#include <algorithm>
#include <optional>

namespace gyre {
namespace {

// "<0x4A>" -> 0x4A.
std::optional<uint8_t> ByteOfPiece(std::string_view piece) {
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

}  // namespace

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

SentencePieceTokenizer::SentencePieceTokenizer(Vocabulary v, bool meta_space, bool space_first, bool after_special)
    : VocabularyTokenizer(std::move(v)),
      meta_space_(meta_space),
      space_first_(space_first),
      after_special_(after_special) {
  bytes_.fill(-1);
  for (size_t id = 0; id < v_.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (v_.types[id] == TokenType::kUnknown && unknown_ < 0) unknown_ = token;
    if (v_.types[id] != TokenType::kByte) continue;
    if (const auto b = ByteOfPiece(v_.piece(id))) bytes_[*b] = token;
  }
}

std::string SentencePieceTokenizer::Piece(TokenId id, bool at_start) const {
  if (!Known(id)) return "";
  const auto i = static_cast<size_t>(id);
  const std::string_view piece = v_.piece(i);
  if (v_.types[i] == TokenType::kControl || v_.types[i] == TokenType::kUnknown) return "";
  if (v_.types[i] == TokenType::kByte) {
    const auto b = ByteOfPiece(piece);
    return b ? std::string(1, static_cast<char>(*b)) : std::string();
  }
  std::string text = meta_space_ ? ReplaceAll(piece, kMetaSpace, " ") : std::string(piece);
  if (at_start && space_first_ && !text.empty() && text[0] == ' ') text.erase(0, 1);
  return text;
}

bool SentencePieceTokenizer::HasBytes(std::string_view character) const {
  return std::all_of(character.begin(), character.end(), [&](char c) { return bytes_[static_cast<uint8_t>(c)] >= 0; });
}

void SentencePieceTokenizer::EmitBytes(std::string_view character, std::vector<TokenId>* out) const {
  bool said_unknown = false;
  for (char c : character) {
    const TokenId byte = bytes_[static_cast<uint8_t>(c)];
    if (byte >= 0) {
      out->push_back(byte);
    } else if (unknown_ >= 0 && !said_unknown) {
      out->push_back(unknown_);
      said_unknown = true;
    }
  }
}

}  // namespace gyre
