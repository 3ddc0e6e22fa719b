// A network between two UDP links in virtual time, with a path of packets in each direction, whose largest size may
// shrink. Seeded: the same seed gives the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/testing/draw.h"
#include "tests/testing/packet_path.h"
#include "tests/testing/virtual_time.h"
#include "transport/udp_core.h"

namespace gyre::testing {

class UdpNetwork {
 public:
  static constexpr size_t kOverhead = 28;  // of IP and UDP

  UdpNetwork(const PacketPath& path, uint64_t seed, const UdpCoreOptions& options = {})
      : path_{path, path}, random_(seed), room_(kUdpLargest) {
    UdpKeys keys;
    for (size_t i = 0; i < keys.send.size(); ++i) {
      keys.send[i] = static_cast<std::byte>(i + seed);
      keys.receive[i] = static_cast<std::byte>(i * 3 + seed);
    }
    const UdpKeys other{.send = keys.receive, .receive = keys.send};
    core_[0] = std::make_unique<UdpCore>(options, keys, 2, Address(1), now());
    core_[1] = std::make_unique<UdpCore>(options, other, 1, std::nullopt, now());
    Send(0);
  }

  UdpCore& core(int side) { return *core_[side]; }
  PacketPath& path(int from) { return path_[from]; }
  Deadline now() const { return time_.now(); }
  // The address that side 0 sends from.
  void Move(int address) { address_[0] = address; }
  void Cut(bool cut) { cut_ = cut; }
  // Somebody on the way copies side 0's datagrams and is faster, from this address, and forwards those that come there.
  void Forward(int address) { forwarder_ = address; }
  uint64_t carried(int from) const { return queue_[from].carried(); }  // bytes with overhead

  uint64_t full(int from) const { return queue_[from].full(); }  // datagrams for which the queue had no room

  // Advances to the next event. Returns false if there is none.
  bool Step() {
    Deadline next = time_.next();
    for (int side : {0, 1}) next = std::min(next, core_[side]->NextTimer(now()));
    if (next == kNoDeadline) return false;
    time_.PassTo(next);
    time_.DoDue();
    for (int side : {0, 1}) Send(side);
    return true;
  }
  // Sends all that a side has now.
  void Send(int side) {
    for (;;) {
      const auto out = core_[side]->Next(room_, now());
      if (out.size == 0) return;
      const bool forwarded = side == 1 && forwarder_ != 0 && out.to == Address(forwarder_);
      const bool to_old = side == 1 && out.to != Address(address_[0]) && !forwarded;
      if (!to_old) Carry(side, {room_.data(), out.size});
    }
  }

 private:
  static UdpAddress Address(int n) {
    UdpAddress a;
    a.bytes[0] = static_cast<std::byte>(n);
    a.size = 16;
    return a;
  }
  void Deliver(Deadline when, int to, const UdpAddress& from, std::vector<std::byte> bytes) {
    time_.At(when, [this, to, from, bytes = std::move(bytes)]() mutable { core_[to]->OnDatagram(bytes, from, now()); });
  }
  void Carry(int from, std::span<const std::byte> datagram) {
    const PacketPath& path = path_[from];
    if (cut_ || datagram.size() > path.largest) return;
    bool forwards = from == 0 && forwarder_ != 0;
    queue_[from].Send(path, datagram.size() + kOverhead, now(), random_, [&](Deadline at) {
      std::vector<std::byte> bytes(datagram.begin(), datagram.end());
      if (std::exchange(forwards, false)) Deliver(now(), 1, Address(forwarder_), bytes);
      if (Chance(random_, path.flip)) {
        const auto bit = random_() % (8 * bytes.size());
        bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      }
      Deliver(at, 1 - from, Address(address_[from]), std::move(bytes));
    });
  }

  PacketPath path_[2];
  RandomBits random_;
  std::vector<std::byte> room_;
  VirtualTime time_;
  std::unique_ptr<UdpCore> core_[2];
  PacketQueue queue_[2];
  int address_[2] = {0, 1};
  bool cut_ = false;
  int forwarder_ = 0;
};

}  // namespace gyre::testing
