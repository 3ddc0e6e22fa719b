// The dialing side of a ring port: the choice of the carrier, and the exchange before it carries frames.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/ring_address.h"
#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/hello.h"
#include "transport/link.h"
#include "transport/open_peers.h"
#include "transport/ring_port.h"
#include "transport/tls_session.h"
#include "transport/udp_host.h"

namespace gyre {

// "hop 1 of plan 3", for messages.
std::string Describe(const Hello& hello);
// The limits of a link of this role.
TcpOptions LimitsOf(const RingPortOptions& options, LinkRole role);
// A TCP connection as a byte stream of the kind that this end wants.
StatusOr<std::unique_ptr<ByteStream>> StreamOf(Fd socket, Transport transport, const TcpOptions& options);
// kFailedPrecondition: this process can't use the carrier.
Status CheckCarrier(Transport transport);

// Thread-safe.
class RingDialer {
 public:
  // All arguments outlive it. `host_id` is this host's. `cancelled`: whether links of this plan are no longer needed.
  RingDialer(const RingPortOptions& options, const std::string& host_id, OpenPeers& peers,
             std::function<bool(const Hello&)> cancelled)
      : options_(options), host_id_(host_id), peers_(peers), cancelled_(std::move(cancelled)) {}
  // Call it before anything is dialed; null: no datagrams.
  void UseUdp(UdpHost* udp) { udp_ = udp; }

  // Dials another process, as RingPort::Dial.
  StatusOr<std::unique_ptr<Link>> Dial(const std::string& address, const Hello& hello, Deadline deadline);

 private:
  // `transport`: kTcp, or kKernel for this end.
  StatusOr<std::unique_ptr<Link>> DialTcp(const std::string& to, Transport transport, const Hello& hello,
                                          Deadline deadline);
  // kUnavailable: this dialer and `to` share no memory; the message says why.
  StatusOr<std::unique_ptr<Link>> DialShm(const RingAddress& to, const Hello& hello, Deadline deadline);
  StatusOr<std::unique_ptr<Link>> DialUdp(const RingAddress& to, Hello hello, Deadline deadline);

  // A connection, with TLS if this end has an identity; then both ends are checked.
  struct Dialed {
    std::unique_ptr<Link> link;
    int socket;  // the link's
    HelloChallenge challenge{};
    std::string serial;  // of the peer's certificate; "" without TLS
  };
  // `reached`: a connection was made, even if it failed later.
  StatusOr<Dialed> DialOnce(const std::string& to, Transport transport, const Hello& hello, Deadline deadline,
                            bool* reached);
  // A link whose hello was answered and not refused.
  struct Greeted {
    Dialed dialed;
    HelloReply reply;
  };
  StatusOr<Greeted> Greet(const std::string& to, Transport transport, const Hello& hello, Deadline deadline);
  // The payload of the next frame, which must be a hello.
  StatusOr<std::vector<std::byte>> ReceiveHello(Link& link, const Hello& hello, Deadline deadline);
  std::unique_ptr<Link> Watched(std::unique_ptr<Link> link, const Hello& hello, const std::string& serial);

  const RingPortOptions& options_;
  const std::string& host_id_;
  OpenPeers& peers_;
  const std::function<bool(const Hello&)> cancelled_;
  UdpHost* udp_ = nullptr;
};

}  // namespace gyre
