#include "transport/hkdf.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <new>
#include <vector>

namespace gyre {
namespace {

unsigned char* Chars(std::byte* p) { return reinterpret_cast<unsigned char*>(p); }
ByteSpan LabelBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

void Sound(bool ok) {
  if (!ok) throw std::bad_alloc();
}

}  // namespace

Hash256 HmacSha256(ByteSpan key, std::initializer_list<ByteSpan> parts) {
  std::vector<std::byte> all;
  for (ByteSpan part : parts) all.insert(all.end(), part.begin(), part.end());
  Hash256 out;
  unsigned size = out.size();
  Sound(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), Chars(all.data()), all.size(), Chars(out.data()),
             &size) != nullptr);
  return out;
}

Hash256 HkdfExtract(std::string_view salt, std::initializer_list<ByteSpan> secret) {
  return HmacSha256(LabelBytes(salt), secret);
}

Hash256 HkdfExpand(const Hash256& secret, std::string_view label, ByteSpan context) {
  const std::byte one[] = {std::byte{1}};
  return HmacSha256(secret, {LabelBytes(label), context, one});
}

bool SameBytes(ByteSpan a, ByteSpan b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void RandomBytes(std::span<std::byte> out) { Sound(RAND_bytes(Chars(out.data()), static_cast<int>(out.size())) == 1); }

}  // namespace gyre
