// Both ends of a UDP link in one process, over loopback.
#pragma once

#include <arpa/inet.h>

#include <memory>
#include <utility>

#include "transport/framed_link.h"
#include "transport/udp_hello.h"
#include "transport/udp_host.h"
#include "transport/udp_wire.h"

namespace gyre::testing {

inline UdpAddress LoopbackUdp(uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ToUdpAddress(reinterpret_cast<const sockaddr*>(&at), sizeof at);
}

using StreamPair = std::pair<std::unique_ptr<ByteStream>, std::unique_ptr<ByteStream>>;

// The dialer's end and the acceptor's, which it reaches at `port` (0: directly). `connection`: the acceptor's end of
// the connection of hello and answer.
inline StreamPair UdpStreams(UdpHost& dialer, UdpHost& acceptor, uint16_t port = 0, Fd connection = {}) {
  const UdpGreeting a = *UdpGreeting::Make(), b = *UdpGreeting::Make();
  const RingKey key{1, 2, 3};
  UdpLinkFacts there{.link = b.offer().link, .peer_link = a.offer().link, .keys = *b.Keys(key, a.offer(), false)};
  there.local = LoopbackUdp(0);
  there.connection = std::move(connection);
  UdpLinkFacts here{.link = a.offer().link, .peer_link = b.offer().link, .keys = *a.Keys(key, b.offer(), true)};
  auto accepted = *acceptor.Accept(std::move(there));
  auto dialed = dialer.Dial(std::move(here), LoopbackUdp(port != 0 ? port : acceptor.port()), kNoDeadline, {});
  return {*std::move(dialed), std::move(accepted)};
}

inline UdpHost& SharedUdpHost() {
  static const std::unique_ptr<UdpHost> host = *UdpHost::Open("127.0.0.1:0");
  return *host;
}

}  // namespace gyre::testing
