// SHA-256 of two messages at once. A processor's instructions for a round of SHA-256 wait for the round before: with
// two messages in turns, a core hashes nearly twice as many bytes in a second. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/sha256.h"

namespace gyre {

// The hashes of both. Where the processor has no such instructions they are made one after the other. Throws as Sha256.
std::array<Hash256, 2> Sha256Pair(std::span<const std::byte> a, std::span<const std::byte> b);

// The SHA-256 of the SHA-256s of two halves. The first one has half of the 64-byte blocks of `bytes`, rounded down.
Hash256 Sha256OfHalves(std::span<const std::byte> bytes);

}  // namespace gyre
