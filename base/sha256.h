// SHA-256 of bytes. Source: FIPS 180-4, as OpenSSL has it. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace gyre {

using Hash256 = std::array<std::byte, 32>;

// Both throw std::bad_alloc where OpenSSL has no memory.
Hash256 Sha256(std::span<const std::byte> bytes);
Hash256 Sha256(std::string_view bytes);

// Lower-case hexadecimal, two digits a byte.
std::string Hex(std::span<const std::byte> bytes);
std::string Hex(std::string_view bytes);

}  // namespace gyre
