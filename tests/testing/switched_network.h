// Hosts that share only a switch: network namespaces, each with a cable (a pair of veth devices) to
// a bridge in another one. A cable may carry a limited rate (tc's tbf). Needs root. For packets that are lost or late:
// lossy_network.h.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "fmt/format.h"
#include "tests/testing/process.h"

namespace gyre::testing {

// The network is removed with the object.
class SwitchedNetwork {
 public:
  // `megabits`: the rate of each host per second; 0: no limit.
  explicit SwitchedNetwork(int hosts, double megabits = 0) : hosts_(hosts) {
    Ip(fmt::format("netns add {}", Switch()));
    Ip(fmt::format("-n {} link add br0 type bridge", Switch()));
    Ip(fmt::format("-n {} link set br0 up", Switch()));
    for (int host = 1; host <= hosts && why_not_.empty(); ++host) {
      Ip(fmt::format("netns add {}", Host(host)));
      Ip(fmt::format("link add eth0 netns {} type veth peer name port{} netns {}", Host(host), host, Switch()));
      Ip(fmt::format("-n {} link set port{} master br0 up", Switch(), host));
      Ip(fmt::format("-n {} addr add {}/24 dev eth0", Host(host), Address(host)));
      Ip(fmt::format("-n {} link set eth0 up", Host(host)));
      Ip(fmt::format("-n {} link set lo up", Host(host)));
      if (megabits <= 0) continue;
      Must({"/usr/sbin/tc", "-n", Host(host), "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
            fmt::format("{}mbit", megabits), "burst", "256kb", "latency", "20ms"});
    }
  }
  ~SwitchedNetwork() {
    for (int host = 1; host <= hosts_; ++host) Ip(fmt::format("netns del {}", Host(host)));
    Ip(fmt::format("netns del {}", Switch()));
  }
  // Empty, or the reason why there is no network.
  const std::string& why_not() const { return why_not_; }
  static std::string Address(int host) { return fmt::format("10.77.0.{}", host); }

  // The command line that runs a command on a host.
  std::vector<std::string> On(int host, const std::vector<std::string>& command) const {
    std::vector<std::string> out{kIp, "netns", "exec", Host(host)};
    out.insert(out.end(), command.begin(), command.end());
    return out;
  }
  // From now on two hosts don't reach each other, or do again; all others reach both.
  bool Part(int one, int other, bool parted = true) {
    const std::string change = parted ? "add" : "del";
    return Ip(fmt::format("-n {} route {} blackhole {}", Host(one), change, Address(other))) &&
           Ip(fmt::format("-n {} route {} blackhole {}", Host(other), change, Address(one)));
  }
  // From now on a host reaches no other one of which this was asked, and is told nothing: what it sends is lost. Hosts
  // of which it was not asked reach it.
  bool Isolate(int host, bool isolated = true) {
    return Ip(
        fmt::format("-n {} link set port{} type bridge_slave isolated {}", Switch(), host, isolated ? "on" : "off"));
  }
  // Pulls the cable of a host, or puts it back.
  bool Cable(int host, bool plugged) {
    return Ip(fmt::format("-n {} link set port{} {}", Switch(), host, plugged ? "up" : "down"));
  }

 private:
  static constexpr const char* kIp = "/usr/sbin/ip";
  static std::string Switch() { return fmt::format("gyre-{}-switch", getpid()); }
  static std::string Host(int n) { return fmt::format("gyre-{}-{}", getpid(), n); }
  bool Ip(const std::string& words) {
    std::vector<std::string> command{kIp};
    for (size_t at = 0; at < words.size();) {
      const size_t end = std::min(words.find(' ', at), words.size());
      command.push_back(words.substr(at, end - at));
      at = end + 1;
    }
    return Must(command);
  }
  bool Must(const std::vector<std::string>& command) {
    Process p(command);
    if (p.Wait(std::chrono::seconds(10)) == 0) return true;
    if (why_not_.empty()) {
      why_not_ = fmt::format("`{}`: {}", fmt::join(command, " "), p.pid() < 0 ? "no such program" : p.output());
    }
    return false;
  }

  const int hosts_;
  std::string why_not_;
};

}  // namespace gyre::testing
