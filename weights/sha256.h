// SHA-256 of bytes. Source: FIPS 180-4, as OpenSSL has it.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace gyre {

using Sha256 = std::array<std::byte, 32>;

Sha256 Sha256Of(std::span<const std::byte> bytes);
// Lower-case hexadecimal.
std::string Hex(const Sha256& hash);

}  // namespace gyre
