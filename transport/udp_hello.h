// A greeting turns the TCP connection of a hello and its answer into a UDP link (docs/wire.md, "UDP"): a link id and
// an X25519 share of each end, and the keys derived from both.
#pragma once

#include <memory>
#include <optional>

#include "base/status.h"
#include "transport/hello.h"
#include "transport/udp_core.h"

struct evp_pkey_st;

namespace gyre {

// The part of one end, used once.
class UdpGreeting {
 public:
  // kInternal: OpenSSL can't make a key.
  static StatusOr<UdpGreeting> Make();
  const UdpOffer& offer() const { return offer_; }  // for the peer
  // `dials`: this end is the dialer. kDataLoss: the peer's share is invalid.
  StatusOr<UdpKeys> Keys(const RingKey& key, const UdpOffer& peer, bool dials) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  std::unique_ptr<evp_pkey_st, Free> secret_;
  UdpOffer offer_;
};

}  // namespace gyre
