#include "weights/sha256.h"

#include <openssl/evp.h>

#include <new>

namespace gyre {

Hash256 Sha256Of(std::span<const std::byte> bytes) {
  Hash256 hash;
  unsigned size = 0;
  // It fails only where memory runs out.
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(hash.data()), &size, EVP_sha256(),
                 nullptr) != 1) {
    throw std::bad_alloc();
  }
  return hash;
}

std::string Hex(const Hash256& hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (std::byte b : hash) {
    out += kDigits[static_cast<unsigned>(b) >> 4];
    out += kDigits[static_cast<unsigned>(b) & 15];
  }
  return out;
}

}  // namespace gyre
