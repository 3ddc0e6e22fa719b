// The UDP links of a ring port: their sockets, the thread that reads them and minds their time, and the streams that
// links stand on. What happens on a link is decided in udp_core.h.
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

// Facts that hello and answer have agreed on.
struct UdpLinkFacts {
  uint64_t link = 0, peer_link = 0;  // what each end's datagrams are addressed to
  UdpKeys keys;
  // The connection that hello and answer went over: it stays open and carries nothing, and its end says that the peer's
  // process has ended. May be none.
  Fd connection;
  UdpAddress local;  // this end's of that connection, from which datagrams leave too; without a size: any
  std::unique_ptr<Link>
      keeps_open;  // the link that hello and answer went over, if `connection` is a copy of its socket
};

// Thread-safe. Streams may outlive it; then they are broken.
class UdpHost {
 public:
  // At `listen`, "HOST:PORT", or at any free port of that host where it is taken. kUnavailable, kResourceExhausted.
  static StatusOr<std::unique_ptr<UdpHost>> Open(const std::string& listen, const UdpCoreOptions& options = {});
  // Links that were closed go on for a second with what they have.
  virtual ~UdpHost() = default;

  virtual uint16_t port() const = 0;
  // The acceptor's end. The dialer's first datagram says where it is; answers come from the address that it asked.
  virtual StatusOr<std::unique_ptr<ByteStream>> Accept(UdpLinkFacts facts) = 0;
  // The dialer's end, once the acceptor has answered. `stopped` is asked every 50 ms. kUnavailable: nothing came over
  // UDP for 5 s; kDeadlineExceeded, kCancelled.
  virtual StatusOr<std::unique_ptr<ByteStream>> Dial(UdpLinkFacts facts, const UdpAddress& to, Deadline deadline,
                                                     const std::function<bool()>& stopped) = 0;
};

}  // namespace gyre
