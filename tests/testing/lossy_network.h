// Hosts with a bad network between them: network namespaces, each with a TUN device, and a thread that carries their
// packets with a rate, delay, loss, reordering and duplicates. Real TCP and real UDP use the same network there. Needs
// root and /dev/net/tun.
#pragma once

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "fmt/core.h"
#include "tests/testing/draw.h"
#include "tests/testing/packet_path.h"
#include "tests/testing/process.h"
#include "transport/fd.h"

namespace gyre::testing {

class LossyNetwork {
 public:
  // Each host sends with this path's rate.
  explicit LossyNetwork(int hosts, const PacketPath& path) : path_(path), queues_(static_cast<size_t>(hosts)) {
    for (int host = 1; host <= hosts && why_not_.empty(); ++host) {
      Fd tun(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
      ifreq request{};
      request.ifr_flags = IFF_TUN | IFF_NO_PI;
      const std::string device = fmt::format("gy{}x{}", getpid(), host);
      std::memcpy(request.ifr_name, device.c_str(), std::min<size_t>(device.size(), IFNAMSIZ - 1));
      if (!tun.ok() || ::ioctl(tun.get(), TUNSETIFF, &request) != 0) {
        why_not_ = fmt::format("no TUN device: {}", std::strerror(errno));
        return;
      }
      tuns_.push_back(std::move(tun));
      Ip(fmt::format("netns add {}", Name(host)));
      Ip(fmt::format("link set {} netns {}", device, Name(host)));
      Ip(fmt::format("-n {} addr add 10.79.0.{}/24 dev {}", Name(host), host, device));
      Ip(fmt::format("-n {} link set {} up mtu 1500 txqueuelen 5000", Name(host), device));
      Ip(fmt::format("-n {} link set lo up", Name(host)));
    }
    if (why_not_.empty()) thread_ = std::thread([this] { Carry(); });
  }
  ~LossyNetwork() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    for (size_t host = 1; host <= queues_.size(); ++host) Ip(fmt::format("netns del {}", Name(static_cast<int>(host))));
  }
  const std::string& why_not() const { return why_not_; }
  static std::string Address(int host) { return fmt::format("10.79.0.{}", host); }
  // The command line that runs a command on a host.
  std::vector<std::string> On(int host, const std::vector<std::string>& command) const {
    std::vector<std::string> out{"/usr/sbin/ip", "netns", "exec", Name(host)};
    out.insert(out.end(), command.begin(), command.end());
    return out;
  }
  uint64_t packets() const { return packets_; }
  uint64_t lost() const { return lost_; }
  uint64_t full() const { return full_; }  // those for which a queue had no room

 private:
  struct Packet {
    Deadline at;
    uint64_t order;
    size_t to;
    std::vector<char> bytes;
    bool operator<(const Packet& o) const { return at != o.at ? at > o.at : order > o.order; }
  };

  static std::string Name(int host) { return fmt::format("gyre-lossy-{}-{}", getpid(), host); }
  void Ip(const std::string& words) {
    std::vector<std::string> command{"/usr/sbin/ip"};
    for (size_t at = 0; at < words.size();) {
      const size_t end = std::min(words.find(' ', at), words.size());
      command.push_back(words.substr(at, end - at));
      at = end + 1;
    }
    Process p(command);
    if (p.Wait(std::chrono::seconds(10)) != 0 && why_not_.empty())
      why_not_ = fmt::format("ip {}: {}", words, p.output());
  }

  void Take(size_t from, const char* bytes, size_t n) {
    const auto byte = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
    if (n < 20 || byte(0) >> 4 != 4 || byte(16) != 10 || byte(17) != 79 || byte(18) != 0) return;
    const size_t to = static_cast<size_t>(byte(19)) - 1;
    if (to >= tuns_.size()) return;
    ++packets_;
    PacketQueue& queue = queues_[from];
    const uint64_t full = queue.full(), lost = queue.lost();
    queue.Send(path_, n, Clock::now(), random_, [&](Deadline at) {
      arriving_.push({.at = at, .order = ++order_, .to = to, .bytes = {bytes, bytes + n}});
    });
    full_ += queue.full() - full;
    lost_ += queue.lost() - lost;
  }

  void Carry() {
    ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    std::vector<pollfd> fds;
    for (const Fd& tun : tuns_) fds.push_back({.fd = tun.get(), .events = POLLIN, .revents = 0});
    std::array<char, 65536> bytes;
    while (!stop_) {
      while (!arriving_.empty() && arriving_.top().at <= Clock::now()) {
        const Packet& p = arriving_.top();
        [[maybe_unused]] const ssize_t n = ::write(tuns_[p.to].get(), p.bytes.data(), p.bytes.size());
        arriving_.pop();
      }
      const Duration most = std::chrono::milliseconds(20);
      const Duration wait =
          arriving_.empty() ? most : std::clamp(arriving_.top().at - Clock::now(), Duration::zero(), most);
      const timespec time{.tv_sec = 0, .tv_nsec = wait.count()};
      if (::ppoll(fds.data(), fds.size(), &time, nullptr) <= 0) continue;
      for (size_t i = 0; i < fds.size(); ++i) {
        for (int turns = 0; fds[i].revents != 0 && turns < 64; ++turns) {
          const ssize_t n = ::read(tuns_[i].get(), bytes.data(), bytes.size());
          if (n <= 0) break;
          Take(i, bytes.data(), static_cast<size_t>(n));
        }
      }
    }
  }

  const PacketPath path_;
  std::string why_not_;
  std::vector<Fd> tuns_;
  std::vector<PacketQueue> queues_;  // of each host, out
  RandomBits random_{1};
  std::priority_queue<Packet> arriving_;
  uint64_t order_ = 0;
  std::atomic<uint64_t> packets_{0}, lost_{0}, full_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace gyre::testing
