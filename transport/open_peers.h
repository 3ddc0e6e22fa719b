// The open links to peers with certificates: they end when the certificate is revoked, not only with their
// plan.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "identity/identity.h"
#include "transport/link.h"

namespace gyre {

// Thread-safe.
class OpenPeers {
 public:
  // The same link, but EndRevoked may close it. `member` and `serial` are those of the peer's certificate.
  std::unique_ptr<Link> Watch(std::unique_ptr<Link> link, std::string member, std::string serial);
  // Closes the links to peers whose certificate `now` has as revoked, and logs it.
  void EndRevoked(const Identity& now);

 private:
  struct Peer {
    std::weak_ptr<Link> link;
    std::string member, serial;
  };
  Mutex mutex_;
  std::list<Peer> peers_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
