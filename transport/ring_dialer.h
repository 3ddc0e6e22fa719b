// The dialing side of a ring port: the choice of the carrier.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "transport/carrier.h"
#include "transport/hello.h"
#include "transport/link.h"
#include "transport/open_peers.h"
#include "transport/ring_port.h"

namespace gyre {

// Thread-safe.
class RingDialer {
 public:
  // All arguments outlive it.
  RingDialer(const RingPortOptions& options, const Carriers& carriers, OpenPeers& peers)
      : options_(options), carriers_(carriers), peers_(peers) {}

  // Dials another process, as RingPort::Dial.
  StatusOr<std::unique_ptr<Link>> Dial(const std::string& address, const Hello& hello, Deadline deadline);

 private:
  // `transport`: the one that links must go over.
  StatusOr<DialedLink> DialOver(Transport transport, const RingAddress& to, const Hello& hello, Deadline deadline);
  // Over the first automatic carrier that the two ends share.
  StatusOr<DialedLink> DialAny(const RingAddress& to, const Hello& hello, Deadline deadline);

  const RingPortOptions& options_;
  const Carriers& carriers_;
  OpenPeers& peers_;
};

}  // namespace gyre
