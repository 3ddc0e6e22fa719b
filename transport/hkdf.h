// Keys derived from keys: HMAC and HKDF with SHA-256 (RFC 2104, 5869), and random bytes. Wrappers of OpenSSL.
// Thread-safe. All throw std::bad_alloc if OpenSSL has no memory.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include "base/sha256.h"
#include "transport/link.h"

namespace gyre {

// HMAC of the parts, one after the other.
Hash256 HmacSha256(ByteSpan key, std::initializer_list<ByteSpan> parts);
// HKDF-Extract of the parts of a secret.
Hash256 HkdfExtract(std::string_view salt, std::initializer_list<ByteSpan> secret);
// HKDF-Expand to 32 bytes with the info `label` followed by `context`.
Hash256 HkdfExpand(const Hash256& secret, std::string_view label, ByteSpan context = {});
bool SameBytes(ByteSpan a, ByteSpan b);  // in constant time
void RandomBytes(std::span<std::byte> out);

}  // namespace gyre
