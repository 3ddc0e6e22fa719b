#include "transport/pieces.h"

#include <algorithm>

namespace gyre {

void EncodePullPiece(const PullPiece& request, Encoder* out) {
  out->PutBytes(request.root.data(), request.root.size());
  out->Put(request.piece);
}

StatusOr<PullPiece> DecodePullPiece(std::span<const std::byte> payload) {
  Decoder in(payload);
  PullPiece request;
  in.GetBytes(request.root.data(), request.root.size());
  request.piece = in.Get<uint32_t>();
  if (!in.Done()) return DataLoss("a request for a piece of {} bytes has a wrong length", payload.size());
  return request;
}

StatusOr<PieceAnswer> DecodePiece(std::span<const std::byte> payload) {
  Decoder in(payload);
  PieceAnswer answer{.piece = in.Get<uint32_t>(), .data = {}};
  if (!in.ok()) return DataLoss("an answer about a piece of {} bytes is cut", payload.size());
  answer.data = in.Rest();
  return answer;
}

std::string NoPieceText(const PieceAnswer& answer) {
  std::string text(reinterpret_cast<const char*>(answer.data.data()), std::min<size_t>(answer.data.size(), 500));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c >= '\x7F'; }, '?');
  return text;
}

}  // namespace gyre
