// The seal of UDP links (docs/wire.md, "UDP"): packets are sealed with AES-256-GCM, and keys are renewed from time to
// time. All functions here throw std::bad_alloc if OpenSSL has no memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "transport/hkdf.h"

struct evp_cipher_ctx_st;

namespace gyre {

inline constexpr size_t kSealTag = 16;

// One key, in one direction. Not thread-safe.
class PacketCipher {
 public:
  enum class Use { kSeal, kOpen };
  PacketCipher(Use use, const Hash256& secret);

  // `packet` is a header of `header` bytes, the text, and room for the tag. It is sealed in place.
  void Seal(uint64_t number, std::span<std::byte> packet, size_t header);
  // Opens the text in place. nullopt: it was not sealed with this key.
  std::optional<std::span<std::byte>> Open(uint64_t number, std::span<std::byte> packet, size_t header);

 private:
  std::array<unsigned char, 12> Nonce(uint64_t number) const;
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  std::array<unsigned char, 12> iv_;
};

// The keys of a link's outgoing packets, one after the other.
class PacketSealer {
 public:
  explicit PacketSealer(const Hash256& secret);
  uint16_t phase() const { return phase_; }
  uint64_t sealed() const { return sealed_; }  // with the current key
  void Renew();
  void Seal(uint64_t number, std::span<std::byte> packet, size_t header);

 private:
  Hash256 secret_;
  PacketCipher cipher_;
  uint16_t phase_ = 0;
  uint64_t sealed_ = 0;
};

// The keys of a link's incoming packets: follows the peer to its next key, and keeps the previous one.
class PacketOpener {
 public:
  explicit PacketOpener(const Hash256& secret);
  std::optional<std::span<std::byte>> Open(uint16_t phase, uint64_t number, std::span<std::byte> packet, size_t header);

 private:
  Hash256 next_secret_;
  PacketCipher current_;
  PacketCipher next_;
  std::optional<PacketCipher> last_;
  uint16_t phase_ = 0;
};

}  // namespace gyre
