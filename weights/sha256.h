// SHA-256 of bytes. Source: FIPS 180-4, as OpenSSL has it.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace gyre {

using Hash256 = std::array<std::byte, 32>;

Hash256 Sha256Of(std::span<const std::byte> bytes);
// Lower-case hexadecimal.
std::string Hex(const Hash256& hash);

}  // namespace gyre
