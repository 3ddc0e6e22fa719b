// A network between two UDP links in virtual time: a rate with a queue, delay, loss, bursts of loss, reordering,
// duplicates, flipped bits, a largest size that may shrink. Seeded: the same seed gives the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/virtual_time.h"
#include "transport/udp_core.h"

namespace gyre::testing {

// One direction.
struct UdpPath {
  double bytes_per_second = 12.5e6;
  size_t queue = 1 << 20;  // bytes that wait; what comes on top is lost
  Duration delay{};
  Duration jitter{};  // a datagram takes up to so much longer, and others overtake it
  double loss = 0, duplicate = 0, flip = 0;
  double burst = 0;  // how often a burst of loss begins, of all datagrams
  int burst_length = 0;
  size_t largest = 65507;
};

class UdpNetwork {
 public:
  static constexpr size_t kOverhead = 28;  // of IP and UDP

  UdpNetwork(const UdpPath& path, uint64_t seed, const UdpCoreOptions& options = {})
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
  UdpPath& path(int from) { return path_[from]; }
  Deadline now() const { return time_.now(); }
  // The address that side 0 sends from.
  void Move(int address) { address_[0] = address; }
  void Cut(bool cut) { cut_ = cut; }
  // Somebody on the way copies side 0's datagrams and is faster, from this address, and forwards those that come there.
  void Forward(int address) { forwarder_ = address; }
  uint64_t carried(int from) const { return carried_[from]; }  // bytes with overhead

  uint64_t full(int from) const { return full_[from]; }  // datagrams for which the queue had no room

  // Advances to the next event. Returns false if there is none.
  bool Step() {
    Deadline next = time_.next();
    for (int side : {0, 1}) next = std::min(next, core_[side]->NextTimer(now()));
    if (next == kNoDeadline) return false;
    time_.PassTo(next);
    while (time_.DoNext()) {
    }
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
  double Draw() { return std::uniform_real_distribution<>(0, 1)(random_); }

  void Carry(int from, std::span<const std::byte> datagram) {
    const UdpPath& path = path_[from];
    if (cut_ || datagram.size() > path.largest) return;
    const auto bytes = datagram.size() + kOverhead;
    const auto took = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(static_cast<double>(bytes) / path.bytes_per_second));
    const Deadline begin = std::max(now(), free_[from]);
    const double waits = std::chrono::duration<double>(begin - now()).count() * path.bytes_per_second;
    if (waits > static_cast<double>(path.queue)) {
      ++full_[from];
      return;
    }
    free_[from] = begin + took;
    carried_[from] += bytes;
    if (path.burst > 0 && Draw() < path.burst) burst_[from] = path.burst_length;
    if (burst_[from] > 0) {
      --burst_[from];
      return;
    }
    if (Draw() < path.loss) return;
    if (from == 0 && forwarder_ != 0) {
      Deliver(now(), 1, Address(forwarder_), {datagram.begin(), datagram.end()});
    }
    for (int copies = Draw() < path.duplicate ? 2 : 1; copies > 0; --copies) {
      Deadline at = free_[from] + path.delay;
      if (path.jitter > Duration::zero()) {
        at += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(path.jitter) * Draw());
      }
      std::vector<std::byte> bytes(datagram.begin(), datagram.end());
      if (Draw() < path.flip) {
        const auto bit = random_() % (8 * bytes.size());
        bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      }
      Deliver(at, 1 - from, Address(address_[from]), std::move(bytes));
    }
  }

  UdpPath path_[2];
  std::mt19937_64 random_;
  std::vector<std::byte> room_;
  VirtualTime time_;
  std::unique_ptr<UdpCore> core_[2];
  Deadline free_[2] = {};
  int burst_[2] = {};
  int address_[2] = {0, 1};
  uint64_t carried_[2] = {}, full_[2] = {};
  bool cut_ = false;
  int forwarder_ = 0;
};

}  // namespace gyre::testing
