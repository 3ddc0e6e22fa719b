#include "base/sha256.h"

#include <openssl/evp.h>

#include <new>

namespace gyre {

Hash256 Sha256(std::span<const std::byte> bytes) {
  Hash256 hash;
  // It fails only if memory runs out.
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(hash.data()), nullptr, EVP_sha256(),
                 nullptr) != 1) {
    throw std::bad_alloc();
  }
  return hash;
}

Hash256 Sha256(std::string_view bytes) { return Sha256(std::as_bytes(std::span(bytes))); }

std::string Hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const std::byte b : bytes) {
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

std::string Hex(std::string_view bytes) { return Hex(std::as_bytes(std::span(bytes))); }

}  // namespace gyre
