// Limits how often strangers cost something: buckets of tokens, one for all and one for each address. Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>

#include "base/clock.h"

namespace gyre {

// A bucket that is full at first.
class TokenBucket {
 public:
  TokenBucket(double per_second, double burst) : per_second_(per_second), burst_(burst), tokens_(burst) {}
  bool Has(Deadline now) {
    Refill(now);
    return tokens_ >= 1;
  }
  void Take() { tokens_ -= 1; }
  bool Full(Deadline now) {
    Refill(now);
    return tokens_ >= burst_;
  }
  // When Has will hold, if nobody takes.
  Deadline Next(Deadline now) {
    Refill(now);
    if (tokens_ >= 1) return now;
    return now +
           std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>((1 - tokens_) / per_second_));
  }

 private:
  void Refill(Deadline now);

  double per_second_, burst_, tokens_;
  Deadline at_ = Deadline::min();
};

// Handshakes cost a processor a good part of a millisecond each.
struct HandshakeLimits {
  double per_second = 100, burst = 200;
  double address_per_second = 20, address_burst = 40;
};

class HandshakeBudget {
 public:
  explicit HandshakeBudget(const HandshakeLimits& limits = {})
      : limits_(limits), all_(limits.per_second, limits.burst) {}
  // Whether the host may have one more now; then it is counted. At most as many hosts are remembered as all may come
  // from within the time in which a host's bucket fills.
  bool Take(const std::string& host, Deadline now);
  // A host from which a member came: what strangers elsewhere take no longer counts for it. The last kTrusted of them.
  void Trust(const std::string& host);
  size_t hosts() const { return hosts_.size(); }

 private:
  const HandshakeLimits limits_;
  TokenBucket all_;
  static constexpr size_t kTrusted = 1024;
  std::map<std::string, TokenBucket> hosts_;
  std::deque<std::string> trusted_;  // the oldest first
};

// Limits count this as one address: an IPv4 address, or the /64 of an IPv6 one.
std::string AddressGroup(const std::string& host);

}  // namespace gyre
