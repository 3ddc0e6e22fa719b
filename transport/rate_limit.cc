#include "transport/rate_limit.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>

namespace gyre {

void TokenBucket::Refill(Deadline now) {
  if (at_ == Deadline::min()) at_ = now;
  if (now <= at_) return;
  tokens_ = std::min(burst_, tokens_ + std::chrono::duration<double>(now - at_).count() * per_second_);
  at_ = now;
}

bool AddressBudget::Take(const std::string& host, Deadline now) {
  const std::string group = AddressGroup(host);
  const auto it = hosts_.find(group);
  if (it != hosts_.end() && !it->second.Has(now)) return false;
  if (std::find(trusted_.begin(), trusted_.end(), group) == trusted_.end()) {
    if (!all_.Has(now)) return false;
    all_.Take();
  }
  if (it != hosts_.end()) {
    it->second.Take();
    return true;
  }
  // A host with a full bucket has the same limit as an unknown one, so it is forgotten.
  for (auto h = hosts_.begin(); h != hosts_.end();) h = h->second.Full(now) ? hosts_.erase(h) : std::next(h);
  TokenBucket bucket(limits_.address_per_second, limits_.address_burst);
  bucket.Has(now);
  bucket.Take();
  hosts_.emplace(group, bucket);
  return true;
}

void AddressBudget::Trust(const std::string& host) {
  const std::string group = AddressGroup(host);
  if (std::find(trusted_.begin(), trusted_.end(), group) != trusted_.end()) return;
  trusted_.push_back(group);
  if (trusted_.size() > kTrusted) trusted_.pop_front();
}

std::string AddressGroup(const std::string& host) {
  // A port for both families sees an IPv4 address in this form.
  constexpr std::string_view kMapped = "::ffff:";
  in_addr v4{};
  if (host.starts_with(kMapped) && inet_pton(AF_INET, host.c_str() + kMapped.size(), &v4) == 1)
    return host.substr(kMapped.size());
  in6_addr v6{};
  // An address of one link has its interface behind a '%'.
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) != 1) return host;
  std::fill(v6.s6_addr + 8, v6.s6_addr + 16, 0);
  char text[INET6_ADDRSTRLEN] = "";
  return inet_ntop(AF_INET6, &v6, text, sizeof text) != nullptr ? text : host;
}

}  // namespace gyre
