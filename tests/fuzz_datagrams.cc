// Datagrams as an unauthenticated peer sends them, and packets as a peer with the key may: to a link whose every answer
// is looked at.
#include <algorithm>
#include <vector>

#include "transport/udp_core.h"

namespace {

using gyre::UdpCore;

gyre::UdpKeys Keys() {
  gyre::UdpKeys keys;
  for (size_t i = 0; i < keys.send.size(); ++i) keys.send[i] = keys.receive[i] = static_cast<std::byte>(i);
  return keys;
}

}  // namespace

// Records: a byte of length, a byte that says what it is, and the bytes. Time passes between them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gyre::Deadline now(std::chrono::seconds(1000));
  gyre::UdpAddress from;
  from.size = 16;
  UdpCore core({.send_buffer = 1 << 16, .receive_buffer = 1 << 16, .largest_datagram = 1472}, Keys(), 2, std::nullopt,
               now);
  gyre::PacketSealer peer(Keys().receive);
  std::vector<std::byte> room(gyre::kUdpLargest), out(4096);
  uint64_t number = 0;
  bool closed = false;
  while (size >= 2) {
    const size_t n = std::min<size_t>(data[0], size - 2);
    const uint8_t what = data[1];
    const auto* bytes = reinterpret_cast<const std::byte*>(data + 2);
    now += std::chrono::microseconds(1) * (1 << (what >> 4));
    from.bytes[0] = static_cast<std::byte>(what & 8);
    switch (what & 7) {
      case 0: {  // anything
        std::vector<std::byte> datagram(bytes, bytes + n);
        core.OnDatagram(datagram, from, now);
        break;
      }
      case 1: {
        const iovec part[] = {{const_cast<std::byte*>(bytes), n}};
        static_cast<void>(core.Write(part, now));
        break;
      }
      case 2: static_cast<void>(core.Read(std::span(out).first(1 + n * 16))); break;
      case 3:
        if (n > 200) core.Close(now), closed = true;
        break;
      default: {  // sealed
        std::vector<std::byte> packet(gyre::kUdpHeader + n + gyre::kSealTag);
        number += 1 + (what & 3) * 7;
        gyre::PutUdpHeader({.phase = 0, .link = 1, .number = number}, packet);
        std::copy(bytes, bytes + n, packet.begin() + gyre::kUdpHeader);
        peer.Seal(number, packet, gyre::kUdpHeader);
        if (!core.OnDatagram(packet, from, now)) __builtin_trap();  // it is the peer's, and news
      }
    }
    for (int sent = 0;; ++sent) {
      const UdpCore::Outgoing next = core.Next(room, now);
      if (next.size == 0) break;
      if (next.size > 1472 || next.to.size == 0 || sent > 10000) __builtin_trap();
    }
    // A timer in the past would let its thread spin.
    if (!core.done() && core.NextTimer(now) <= now) __builtin_trap();
    data += 2 + n;
    size -= 2 + n;
  }
  return 0;
}
