#include "transport/udp_hello.h"

#include <openssl/evp.h>

#include "base/coding.h"
#include "transport/plan_key.h"

namespace gyre {

void UdpGreeting::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

StatusOr<UdpGreeting> UdpGreeting::Make() {
  UdpGreeting g;
  g.secret_.reset(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  size_t size = g.offer_.share.size();
  if (!g.secret_ || EVP_PKEY_get_raw_public_key(g.secret_.get(), g.offer_.share.data(), &size) != 1 ||
      size != g.offer_.share.size()) {
    return Internal("OpenSSL makes no X25519 key");
  }
  RandomBytes(std::as_writable_bytes(std::span(&g.offer_.link, 1)));
  return g;
}

StatusOr<UdpKeys> UdpGreeting::Keys(const RingKey& key, const UdpOffer& peer, bool dials) const {
  const std::unique_ptr<EVP_PKEY, Free> theirs(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, peer.share.data(), peer.share.size()));
  struct FreeContext {
    void operator()(EVP_PKEY_CTX* c) const { EVP_PKEY_CTX_free(c); }
  };
  const std::unique_ptr<EVP_PKEY_CTX, FreeContext> context(EVP_PKEY_CTX_new(secret_.get(), nullptr));
  Hash256 shared;
  size_t size = shared.size();
  if (!theirs || !context || EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_derive_set_peer(context.get(), theirs.get()) != 1 ||
      EVP_PKEY_derive(context.get(), reinterpret_cast<unsigned char*>(shared.data()), &size) != 1 ||
      size != shared.size()) {
    return DataLoss("its share of the keys is no point of X25519");
  }
  Encoder both;
  for (const UdpOffer* offer : {dials ? &offer_ : &peer, dials ? &peer : &offer_}) {
    both.Put(offer->link);
    both.PutBytes(offer->share.data(), offer->share.size());
  }
  const Hash256 root = HkdfExtract("gyre udp 1", {shared, UdpKey(key)});
  const Hash256 context_hash = Sha256(both.bytes());
  const Hash256 to_acceptor = HkdfExpand(root, "to acceptor", context_hash);
  const Hash256 to_dialer = HkdfExpand(root, "to dialer", context_hash);
  return dials ? UdpKeys{.send = to_acceptor, .receive = to_dialer}
               : UdpKeys{.send = to_dialer, .receive = to_acceptor};
}

}  // namespace gyre
