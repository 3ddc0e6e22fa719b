// The bytes of messages about pieces of a model's files on bulk links: docs/wire.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/coding.h"
#include "base/status.h"

namespace gyre {

// Asks for one piece of the model whose manifest has this root (weights/manifest.h).
struct PullPiece {
  std::array<std::byte, 32> root{};
  uint32_t piece = 0;
  bool operator==(const PullPiece&) const = default;
};

// The payload of kPiece and, with a text in place of the bytes, of kNoPiece.
struct PieceAnswer {
  uint32_t piece = 0;
  std::span<const std::byte> data;  // into the payload
};

void EncodePullPiece(const PullPiece& request, Encoder* out);
// kDataLoss
StatusOr<PullPiece> DecodePullPiece(std::span<const std::byte> payload);
// kDataLoss
StatusOr<PieceAnswer> DecodePiece(std::span<const std::byte> payload);
// The text of a kNoPiece: printable, of at most 500 characters.
std::string NoPieceText(const PieceAnswer& answer);

}  // namespace gyre
