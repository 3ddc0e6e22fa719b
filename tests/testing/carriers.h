// Every carrier of links, also with small buffers or a bad network: for tests of the properties that all of them share.
#pragma once

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "tests/testing/identities.h"
#include "tests/testing/tcp_pair.h"
#include "tests/testing/udp_pair.h"
#include "tests/testing/udp_relay.h"
#include "transport/inproc_link.h"
#include "transport/shm_stream.h"
#include "transport/tls_stream.h"
#include "transport/uring_stream.h"

namespace gyre::testing {

using LinkPair = std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>>;
inline LinkPair ShmPair(bool one_mapping) {
  auto streams = *MakeShmPair(one_mapping);
  return {*MakeFramedLink(std::move(streams.first), "the acceptor"),
          *MakeFramedLink(std::move(streams.second), "the dialer")};
}

// REQUIRES: CheckUring is OK.
inline LinkPair UringPair(const UringOptions& options = {}, const TcpStreamOptions& tcp = {}) {
  const auto [client, server] = ConnectedSockets();
  return {*MakeFramedLink(*MakeUringStream(Fd(client), tcp, options), "the server"),
          *MakeFramedLink(*MakeUringStream(Fd(server), tcp, options), "the client")};
}

// `port`: the port that the dialer sends to; 0: the acceptor's own.
inline LinkPair UdpPair(uint16_t port = 0) {
  auto streams = UdpStreams(SharedUdpHost(), SharedUdpHost(), port);
  return {*MakeFramedLink(std::move(streams.first), "the acceptor"),
          *MakeFramedLink(std::move(streams.second), "the dialer")};
}

// TLS over two connected streams, with keys that are renewed all the time.
inline LinkPair TlsPair(std::unique_ptr<ByteStream> client, std::unique_ptr<ByteStream> server) {
  static TestAuthority authority;  // making one for each pair would take longer than the tests
  static const auto identity = authority.IssueOpen(Role::kWorker, "w")->current();
  const TlsSessionOptions options{.records_a_key = 100};
  auto to = *TlsSession::Make(identity, TlsSide::kClient, options),
       from = *TlsSession::Make(identity, TlsSide::kServer, options);
  auto accepted =
      std::async(std::launch::async, [&] { return DoHandshake(*server, *from, After(std::chrono::seconds(20))); });
  Must(DoHandshake(*client, *to, After(std::chrono::seconds(20))));
  Must(accepted.get());
  return {*MakeFramedLink(MakeTlsStream(std::move(client), std::move(to)), "the server"),
          *MakeFramedLink(MakeTlsStream(std::move(server), std::move(from)), "the client")};
}
inline LinkPair TlsTcpPair(const TcpStreamOptions& options = {}) {
  const auto [client, server] = ConnectedSockets();
  return TlsPair(*MakeTcpStream(Fd(client), options), *MakeTcpStream(Fd(server), options));
}

struct Carrier {
  const char* name;
  Transport transport;
  LinkPair (*make)();
};

// One of each carrier, with its usual settings.
inline std::vector<Carrier> PlainCarriers() {
  std::vector<Carrier> carriers = {
      {"memory", Transport::kMemory, [] { return MakeInprocLinkPair(); }},
      {"tcp", Transport::kTcp, [] { return TcpPair(); }},
      {"tls", Transport::kTcp, [] { return TlsTcpPair(); }},
      {"shm", Transport::kShm, [] { return ShmPair(false); }},
      {"udp", Transport::kUdp, [] { return UdpPair(); }},
  };
  if (CheckUring().ok()) {
    carriers.push_back({"kernel", Transport::kKernel, [] { return UringPair(); }});
    carriers.push_back({"kernel_zero_copy", Transport::kKernel, [] { return UringPair({.zero_copy_from = 8 << 10}); }});
  }
  return carriers;
}

inline std::vector<Carrier> AllCarriers() {
  std::vector<Carrier> all = PlainCarriers();
  const std::vector<Carrier> harder = {
      {"memory_few_frames", Transport::kMemory, [] { return MakeInprocLinkPair({.max_queued_frames = 64}); }},
      {"memory_crc", Transport::kMemory,
       [] { return MakeInprocLinkPair({.max_queued_bytes = 9000, .check_crc = true}); }},
      {"shm_one_mapping", Transport::kShm, [] { return ShmPair(true); }},
      {"udp_lossy", Transport::kUdp,
       [] {
         // Each pair has its own, as a relay answers whom it heard last. They live as long as the links.
         static auto* const relays = new std::vector<std::unique_ptr<UdpRelay>>;
         relays->push_back(std::make_unique<UdpRelay>(SharedUdpHost().port(), 0.05));
         return UdpPair(relays->back()->port());
       }},
      {"tcp_small_buffers", Transport::kTcp,
       [] {
         return TcpPair({{}, {.send_buffer = 32768, .receive_buffer = 32768}});
       }},
      {"tcp_chopped", Transport::kTcp, [] { return ChoppedTcpPair(1); }},
      {"tls_small_buffers", Transport::kTcp,
       [] { return TlsTcpPair({.send_buffer = 32768, .receive_buffer = 32768}); }},
  };
  all.insert(all.end(), harder.begin(), harder.end());
  if (CheckUring().ok()) {
    all.push_back({"kernel_tls", Transport::kKernel, [] {
                     const auto [client, server] = ConnectedSockets();
                     return TlsPair(*MakeUringStream(Fd(client)), *MakeUringStream(Fd(server)));
                   }});
    all.push_back({"kernel_small_buffers", Transport::kKernel, [] {
                     return UringPair({.zero_copy_from = 1000}, {.send_buffer = 32768, .receive_buffer = 32768});
                   }});
  }
  return all;
}

}  // namespace gyre::testing
