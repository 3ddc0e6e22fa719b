// A relay of datagrams on loopback that loses, duplicates and swaps some of them: between a dialer at any address and a
// port.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/testing/udp_pair.h"
#include "transport/udp_wire.h"

namespace gyre::testing {

class UdpRelay {
 public:
  UdpRelay(uint16_t to, double loss) : to_(LoopbackUdp(to)), loss_(loss), thread_([this] { Carry(); }) {}
  ~UdpRelay() {
    stop_ = true;
    thread_.join();
  }
  uint16_t port() const { return socket_.port(); }

 private:
  void Carry() {
    UdpReceiver receiver;
    std::mt19937 random(1);
    UdpAddress dialer;
    struct Held {
      std::vector<std::byte> bytes;
      UdpAddress to;
    };
    std::vector<Held> held;  // is overtaken by what comes next
    const auto send = [this](std::span<const std::byte> bytes, const UdpAddress& to) {
      ::sendto(socket_.fd(), bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(to.bytes.data()),
               to.size);
    };
    while (!stop_) {
      pollfd p{.fd = socket_.fd(), .events = POLLIN, .revents = 0};
      ::poll(&p, 1, 2);
      while (receiver.Receive(socket_, [&](std::span<std::byte> datagram, const UdpAddress& from) {
        if (from != to_) dialer = from;
        const UdpAddress& to = from == to_ ? dialer : to_;
        const double draw = std::uniform_real_distribution<>(0, 1)(random);
        if (draw < loss_) return;
        if (draw < 2 * loss_) {
          held.push_back({.bytes = {datagram.begin(), datagram.end()}, .to = to});
          return;
        }
        if (draw < 2.5 * loss_) send(datagram, to);
        send(datagram, to);
      })) {
      }
      for (const Held& h : held) send(h.bytes, h.to);
      held.clear();
    }
  }

  const UdpSocket socket_ = *UdpSocket::Open("127.0.0.1:0");
  const UdpAddress to_;
  const double loss_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace gyre::testing
