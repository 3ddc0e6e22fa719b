// The UDP links of a ring port: their sockets, the thread that reads them and handles their timers, and the byte
// streams of the links. The policy of a link is in udp_core.h.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/fd.h"
#include "transport/link.h"
#include "transport/udp_core.h"

namespace gyre {

// The facts on which hello and answer have agreed.
struct UdpLinkFacts {
  uint64_t link = 0, peer_link = 0;  // what each end's datagrams are addressed to
  UdpKeys keys;
  // The connection of hello and answer: it stays open and carries nothing, and its end means that the peer's
  // process has ended. May be empty.
  Fd connection;
  UdpAddress local;  // this end's of that connection, from which datagrams leave too; without a size: any
  std::unique_ptr<Link>
      keeps_open;  // the link that hello and answer went over, if `connection` is a copy of its socket
};

// Thread-safe. Streams may outlive it; then they are broken.
class UdpHost {
 public:
  // Opens `listen`, "HOST:PORT", or any free port of that host if it is taken. kUnavailable, kResourceExhausted.
  static StatusOr<std::unique_ptr<UdpHost>> Open(const std::string& listen, const UdpCoreOptions& options = {});
  // Closed links may send their remaining bytes for one more second.
  virtual ~UdpHost() = default;

  virtual uint16_t port() const = 0;
  // The acceptor's end. The dialer's address is that of its first datagram; answers come from the address it asked.
  virtual StatusOr<std::unique_ptr<ByteStream>> Accept(UdpLinkFacts facts) = 0;
  // The dialer's end, once the acceptor has answered. `stopped` is asked every 50 ms. kUnavailable: nothing came over
  // UDP for 5 s; kDeadlineExceeded, kCancelled.
  virtual StatusOr<std::unique_ptr<ByteStream>> Dial(UdpLinkFacts facts, const UdpAddress& to, Deadline deadline,
                                                     const std::function<bool()>& stopped) = 0;
};

}  // namespace gyre
