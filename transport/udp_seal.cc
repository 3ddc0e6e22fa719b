#include "transport/udp_seal.h"

#include <openssl/evp.h>

#include <cstring>
#include <new>

namespace gyre {
namespace {

unsigned char* Raw(std::byte* p) { return reinterpret_cast<unsigned char*>(p); }
const unsigned char* Raw(const std::byte* p) { return reinterpret_cast<const unsigned char*>(p); }

void Must(bool ok) {
  if (!ok) throw std::bad_alloc();
}

}  // namespace

void PacketCipher::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

PacketCipher::PacketCipher(Use use, const Hash256& secret) : context_(EVP_CIPHER_CTX_new()) {
  const Hash256 key = HkdfExpand(secret, "key"), iv = HkdfExpand(secret, "iv");
  std::memcpy(iv_.data(), iv.data(), iv_.size());
  Must(context_ != nullptr);
  const int seals = use == Use::kSeal ? 1 : 0;
  Must(EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, Raw(key.data()), iv_.data(), seals) == 1);
}

std::array<unsigned char, 12> PacketCipher::Nonce(uint64_t number) const {
  std::array<unsigned char, 12> nonce = iv_;
  for (size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<unsigned char>(nonce[4 + i] ^ (number >> (8 * i)));
  return nonce;
}

void PacketCipher::Seal(uint64_t number, std::span<std::byte> packet, size_t header) {
  const auto nonce = Nonce(number);
  unsigned char* const text = Raw(packet.data()) + header;
  const int size = static_cast<int>(packet.size() - header - kSealTag);
  int n = 0;
  EVP_CIPHER_CTX* const c = context_.get();
  Must(EVP_EncryptInit_ex(c, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
       EVP_EncryptUpdate(c, nullptr, &n, Raw(packet.data()), static_cast<int>(header)) == 1 &&
       EVP_EncryptUpdate(c, text, &n, text, size) == 1 && EVP_EncryptFinal_ex(c, text + size, &n) == 1 &&
       EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, kSealTag, text + size) == 1);
}

std::optional<std::span<std::byte>> PacketCipher::Open(uint64_t number, std::span<std::byte> packet, size_t header) {
  if (packet.size() < header + kSealTag) return std::nullopt;
  const auto nonce = Nonce(number);
  unsigned char* const text = Raw(packet.data()) + header;
  const size_t size = packet.size() - header - kSealTag;
  int n = 0;
  EVP_CIPHER_CTX* const c = context_.get();
  if (EVP_DecryptInit_ex(c, nullptr, nullptr, nullptr, nonce.data()) != 1 ||
      EVP_DecryptUpdate(c, nullptr, &n, Raw(packet.data()), static_cast<int>(header)) != 1 ||
      EVP_DecryptUpdate(c, text, &n, text, static_cast<int>(size)) != 1 ||
      EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, kSealTag, text + size) != 1 ||
      EVP_DecryptFinal_ex(c, text + size, &n) != 1) {
    return std::nullopt;
  }
  return packet.subspan(header, size);
}

PacketSealer::PacketSealer(const Hash256& secret) : secret_(secret), cipher_(PacketCipher::Use::kSeal, secret) {}

void PacketSealer::Renew() {
  secret_ = HkdfExpand(secret_, "next");
  cipher_ = PacketCipher(PacketCipher::Use::kSeal, secret_);
  ++phase_;
  sealed_ = 0;
}

void PacketSealer::Seal(uint64_t number, std::span<std::byte> packet, size_t header) {
  cipher_.Seal(number, packet, header);
  ++sealed_;
}

PacketOpener::PacketOpener(const Hash256& secret)
    : next_secret_(HkdfExpand(secret, "next")),
      current_(PacketCipher::Use::kOpen, secret),
      next_(PacketCipher::Use::kOpen, next_secret_) {}

std::optional<std::span<std::byte>> PacketOpener::Open(uint16_t phase, uint64_t number, std::span<std::byte> packet,
                                                       size_t header) {
  if (phase == phase_) return current_.Open(number, packet, header);
  if (phase == static_cast<uint16_t>(phase_ - 1)) return last_ ? last_->Open(number, packet, header) : std::nullopt;
  if (phase != static_cast<uint16_t>(phase_ + 1)) return std::nullopt;
  const auto text = next_.Open(number, packet, header);
  if (!text) return std::nullopt;
  next_secret_ = HkdfExpand(next_secret_, "next");
  last_ = std::move(current_);
  current_ = std::move(next_);
  next_ = PacketCipher(PacketCipher::Use::kOpen, next_secret_);
  ++phase_;
  return text;
}

}  // namespace gyre
