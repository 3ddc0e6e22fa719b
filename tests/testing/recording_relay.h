// A relay on loopback that records all bytes in both directions, as somebody on the network can.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transport/tcp_link.h"

namespace gyre::testing {

class RecordingRelay {
 public:
  // Forwards every connection to its address to `target`, HOST:PORT.
  explicit RecordingRelay(std::string target) : target_(std::move(target)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    accepter_ = std::thread([this] {
      while (!stopping_) {
        pollfd p{.fd = listener_, .events = POLLIN, .revents = 0};
        if (poll(&p, 1, 20) <= 0) continue;
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) relays_.emplace_back([this, fd] { Relay(fd); });
      }
    });
  }
  ~RecordingRelay() {
    stopping_ = true;
    accepter_.join();
    for (std::thread& t : relays_) t.join();
    close(listener_);
  }
  const std::string& address() const { return address_; }
  std::string Recorded() const {
    std::lock_guard lock(mutex_);
    return recorded_;
  }

 private:
  void Relay(int from) {
    const auto to = ConnectTcp(target_, After(std::chrono::seconds(5)));
    const int ends[2] = {from, to.ok() ? *to : -1};
    std::vector<char> bytes(64 << 10);
    bool open = to.ok();
    while (open && !stopping_) {
      pollfd fds[2] = {{.fd = ends[0], .events = POLLIN, .revents = 0},
                       {.fd = ends[1], .events = POLLIN, .revents = 0}};
      if (poll(fds, 2, 20) <= 0) continue;
      for (int i = 0; i < 2 && open; ++i) {
        if (fds[i].revents == 0) continue;
        const ssize_t n = recv(ends[i], bytes.data(), bytes.size(), 0);
        open = n > 0 && SendAll(ends[1 - i], bytes.data(), static_cast<size_t>(n));
        if (n <= 0) continue;
        std::lock_guard lock(mutex_);
        recorded_.append(bytes.data(), static_cast<size_t>(n));
      }
    }
    for (const int fd : ends) {
      if (fd >= 0) close(fd);
    }
  }
  bool SendAll(int fd, const char* data, size_t size) {
    while (size > 0 && !stopping_) {
      const ssize_t n = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        data += n;
        size -= static_cast<size_t>(n);
        continue;
      }
      if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
      pollfd p{.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&p, 1, 20);
    }
    return size == 0;
  }

  const std::string target_;
  std::string address_;
  int listener_ = -1;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::string recorded_;
  std::vector<std::thread> relays_;  // the accepter's
  std::thread accepter_;
};

}  // namespace gyre::testing
