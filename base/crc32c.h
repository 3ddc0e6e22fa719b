// CRC-32C (Castagnoli), as in RFC 3720 appendix B.4. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gyre {

// Continues from `crc`, the value of the preceding bytes; 0 at the start. Thread-safe.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// The table-driven version, for processors without the instruction. Crc32c chooses at run time.
uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace gyre
