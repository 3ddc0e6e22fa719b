// Limits on costly actions of unauthenticated peers: buckets of tokens, one for all and one for each address. Pure.
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
  // The time when Has will be true, if nobody takes tokens.
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

// A handshake costs a processor a good part of a millisecond.
struct AddressLimits {
  double per_second = 100, burst = 200;
  double address_per_second = 20, address_burst = 40;
};

class AddressBudget {
 public:
  explicit AddressBudget(const AddressLimits& limits = {}) : limits_(limits), all_(limits.per_second, limits.burst) {}
  // Whether the host may act once more now; then it is counted. At most as many hosts are remembered as can come
  // within the time in which a host's bucket fills.
  bool Take(const std::string& host, Deadline now);
  // Marks a host from which a member came: it no longer shares the budget of unauthenticated peers. Keeps the last
  // kTrusted hosts.
  void Trust(const std::string& host);
  size_t hosts() const { return hosts_.size(); }

 private:
  const AddressLimits limits_;
  TokenBucket all_;
  static constexpr size_t kTrusted = 1024;
  std::map<std::string, TokenBucket> hosts_;
  std::deque<std::string> trusted_;  // the oldest first
};

// The address group that limits count as one: an IPv4 address, or the /64 of an IPv6 one.
std::string AddressGroup(const std::string& host);

}  // namespace gyre
