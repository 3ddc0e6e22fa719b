// Masks of token ids as they go round the ring to the last stage, each once, before the first step that names it by its
// number (docs/wire.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/coding.h"
#include "base/status.h"

namespace gyre {

struct NumberedMask {
  uint32_t number = 0;          // < kMaxMasks; a later mask with this number takes its place
  std::vector<uint64_t> words;  // as RowRequest::mask
  bool operator==(const NumberedMask&) const = default;
};

// A mask for `vocab` ids takes the shortest of three forms: its words, the allowed ids, the forbidden ids. REQUIRES:
// each has (vocab + 63) / 64 words, and no bit behind the last id.
void EncodeMasks(std::span<const NumberedMask> masks, uint32_t vocab, Encoder* out);
// kDataLoss: malformed, or of another vocabulary.
StatusOr<std::vector<NumberedMask>> DecodeMasks(std::span<const std::byte> bytes, uint32_t vocab);

}  // namespace gyre
