// The frame header, byte for byte: docs/wire.md. Little-endian, fixed 64 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/status.h"
#include "base/wire_type.h"

namespace gyre {

// The numbers never change.
enum class FrameKind : uint16_t {
  kHello = 1,
  kTokens = 2,             // payload: u32 descriptor length, StepBatch, then int32 ids [rows]
  kHidden = 3,             // payload: u32 descriptor length, StepBatch, then activations [rows][dim] of dtype, for a
                           // model with per-layer embeddings then int32 ids [rows]
  kAnswer = 4,             // payload: StepAnswer
  kStepError = 5,          // payload: StepError
  kFullLogitsRequest = 6,  // payload: FullLogitsRequest
  kLogitsAnswer = 7,       // payload: LogitsAnswer
  kPullPages = 8,          // payload: PullPages (docs/wire.md, bulk links)
  kPages = 9,              // payload: Pages
  kPullError = 10,         // payload: text
  kPullPiece = 11,         // payload: PullPiece (transport/pieces.h)
  kPiece = 12,             // payload: u32 piece, then its bytes
  kNoPiece = 13,           // payload: u32 piece, then text
  kProbe = 14,             // payload: u32 bytes that the answer shall have (transport/probe.h)
  kProbed = 15,            // payload: so many bytes
  kMasks = 16,             // payload: masks (base/mask_codec.h)
};

inline constexpr uint32_t kFrameMagic = 0x45525947;  // "GYRE" in memory
inline constexpr uint16_t kFrameVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 64;
inline constexpr uint64_t kMaxPayload = uint64_t{1} << 30;

struct FrameHeader {
  uint16_t version = kFrameVersion;
  uint16_t header_bytes = kFrameHeaderBytes;
  FrameKind kind{};
  WireType dtype = WireType::kNone;
  Epoch epoch;
  StepId step{};
  uint32_t rows = 0;
  uint64_t length = 0;       // payload bytes
  uint32_t payload_crc = 0;  // CRC-32C of the payload
  // The microseconds that the stages took for the step until the frame was sent, and those of the slowest stage.
  uint32_t computed_us = 0, slowest_us = 0;
  bool queued = false;  // a stage was not free when the step came
  bool operator==(const FrameHeader&) const = default;
};

std::array<std::byte, kFrameHeaderBytes> EncodeHeader(const FrameHeader& header);

// kInvalidArgument: a payload of so many bytes is too large for a frame.
Status CheckPayload(uint64_t bytes);

// Checks magic, header crc, version, header length, and only then the kind, type and length (<= max_payload).
// kDataLoss with what was found and what was expected.
StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte> bytes, uint64_t max_payload = kMaxPayload);

}  // namespace gyre
