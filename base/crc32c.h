// CRC-32C (Castagnoli), as in RFC 3720 appendix B.4. Standard library only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gyre {

// Continues from `crc`, the value of the preceding bytes; 0 at the start. Thread-safe.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// The CRCs of four parts of `bytes`. Each of the first three has a quarter of them, rounded down to whole words of 8
// bytes. Each of the processor's instructions waits for the result of the one before, so four CRCs in turns take a
// third of the time of one. Thread-safe.
std::array<uint32_t, 4> Crc32cOfQuarters(std::span<const std::byte> bytes);

// The table-driven version, for processors without the instruction. Crc32c chooses at run time.
uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace gyre
