// Every carrier of links, and each with buffers or a network that make it hard: for tests of what all of them promise.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/testing/tcp_pair.h"
#include "tests/testing/udp_pair.h"
#include "tests/testing/udp_relay.h"
#include "transport/inproc_link.h"
#include "transport/shm_stream.h"
#include "transport/uring_stream.h"

namespace gyre::testing {

using LinkPair = std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>>;
inline LinkPair ShmPair(bool one_mapping) {
  auto streams = *MakeShmPair(one_mapping);
  return {*MakeFramedLink(std::move(streams.first), "the acceptor"),
          *MakeFramedLink(std::move(streams.second), "the dialer")};
}

// Only where CheckUring is OK.
inline LinkPair UringPair(const UringOptions& options = {}, const TcpStreamOptions& tcp = {}) {
  const auto [client, server] = ConnectedSockets();
  return {*MakeFramedLink(*MakeUringStream(Fd(client), tcp, options), "the server"),
          *MakeFramedLink(*MakeUringStream(Fd(server), tcp, options), "the client")};
}

// `port`: where the dialer sends to; 0: to the acceptor itself.
inline LinkPair UdpPair(uint16_t port = 0) {
  auto streams = UdpStreams(SharedUdpHost(), SharedUdpHost(), port);
  return {*MakeFramedLink(std::move(streams.first), "the acceptor"),
          *MakeFramedLink(std::move(streams.second), "the dialer")};
}

struct Carrier {
  const char* name;
  Transport transport;
  LinkPair (*make)();
};

// One of each carrier as it is used.
inline std::vector<Carrier> PlainCarriers() {
  std::vector<Carrier> carriers = {
      {"memory", Transport::kMemory, [] { return MakeInprocLinkPair(); }},
      {"tcp", Transport::kTcp, [] { return TcpPair(); }},
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
         static UdpRelay* const relay = new UdpRelay(SharedUdpHost().port(), 0.05);  // as long as the links
         return UdpPair(relay->port());
       }},
      {"tcp_small_buffers", Transport::kTcp,
       [] {
         return TcpPair({{}, {.send_buffer = 32768, .receive_buffer = 32768}});
       }},
      {"tcp_chopped", Transport::kTcp, [] { return ChoppedTcpPair(1); }},
  };
  all.insert(all.end(), harder.begin(), harder.end());
  if (CheckUring().ok()) {
    all.push_back({"kernel_small_buffers", Transport::kKernel, [] {
                     return UringPair({.zero_copy_from = 1000}, {.send_buffer = 32768, .receive_buffer = 32768});
                   }});
  }
  return all;
}

}  // namespace gyre::testing
