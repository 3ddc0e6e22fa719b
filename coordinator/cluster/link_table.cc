#include "coordinator/cluster/link_table.h"

#include <algorithm>

#include "identity/principal.h"

namespace gyre {

std::vector<WeightSource> LinkTable::Wanted(const std::string& by, const std::vector<Peer>& there, Deadline now) {
  std::vector<WeightSource> peers;
  Links& links = links_[by];
  const auto want = [&](const std::string& to, const std::string& address) {
    const auto asked = links.asked.find(to);
    const auto found = links.found.find(to);
    const bool failed = found != links.found.end() && !found->second.failure.empty();
    if (asked != links.asked.end() && !(failed && now - asked->second >= again_)) return;
    if (peers.size() >= kMaxLinkSpeeds) return;
    peers.push_back({to, address});
    links.asked[to] = now;
  };
  if (by != kThisProcess) want(kCoordinatorName, address_);
  for (const Peer& other : there) {
    if (other.name != by) want(other.name, other.address);
  }
  if (!peers.empty()) links.until = now + timeout_;
  return peers;
}

bool LinkTable::Measuring(Deadline now) const {
  return std::any_of(links_.begin(), links_.end(), [now](const auto& links) { return links.second.until > now; });
}

std::optional<LinkTable::Order> LinkTable::Next(const std::vector<Peer>& there, Deadline now) {
  if (address_.empty() || Measuring(now)) return std::nullopt;
  for (const Peer& peer : there) {
    if (!peer.measures) continue;
    if (auto peers = Wanted(peer.name, there, now); !peers.empty()) return Order{peer.name, std::move(peers)};
  }
  if (!measures_here_) return std::nullopt;
  if (auto peers = Wanted(kThisProcess, there, now); !peers.empty()) return Order{kThisProcess, std::move(peers)};
  return std::nullopt;
}

std::vector<LinkSpeed> LinkTable::Answered(const std::string& by, const StageProbed& probed, Deadline now) {
  std::vector<LinkSpeed> failed;
  Links& links = links_[by];
  links.until = now;
  for (const LinkSpeed& l : probed.links) {
    // A link that was not asked for is ignored, so that a member can't fill the memory with names.
    if (links.asked.count(l.to) == 0) continue;
    if (!l.failure.empty()) failed.push_back(l);
    links.found[l.to] = l;
  }
  return failed;
}

void LinkTable::Forget(const std::string& name) {
  links_.erase(name);
  for (auto& [by, links] : links_) {
    links.asked.erase(name);
    links.found.erase(name);
  }
}

const std::map<std::string, LinkSpeed>& LinkTable::From(const std::string& name) const {
  static const std::map<std::string, LinkSpeed> kNone;
  const auto it = links_.find(name);
  return it == links_.end() ? kNone : it->second.found;
}

std::vector<std::pair<std::string, std::string>> LinkTable::FailuresTo(const std::string& name) const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [by, links] : links_) {
    const auto link = links.found.find(name);
    if (link == links.found.end() || link->second.failure.empty()) continue;
    out.emplace_back(by == kThisProcess ? "the coordinator" : by, link->second.failure);
  }
  return out;
}

HopSpeed LinkTable::Hop(const std::string& from, const std::string& to) const {
  if (from == to) return {};
  const auto known = [this](const std::string& by, const std::string& of) -> const LinkSpeed* {
    const auto& found = From(by);
    const auto it = found.find(of == kThisProcess ? kCoordinatorName : of);
    return it == found.end() ? nullptr : &it->second;
  };
  const LinkSpeed* const dialed = known(from, to);  // as the ring would dial it
  const LinkSpeed* const pulled = known(to, from);  // its bytes went the same way as the ring's
  HopSpeed hop;
  hop.reached = dialed == nullptr || dialed->failure.empty();
  if (from == kThisProcess && dialed == nullptr) {
    // Until the coordinator has measured: whom no worker reaches, it does not reach either.
    bool tried = false, found = false;
    for (const auto& [by, links] : links_) {
      const auto it = links.found.find(to);
      if (it == links.found.end()) continue;
      tried = true;
      found |= it->second.failure.empty();
    }
    hop.reached = found || !tried;
  }
  for (const LinkSpeed* l : {pulled, dialed}) {
    if (l == nullptr || !l->failure.empty()) continue;
    if (hop.bytes_per_second == 0) hop.bytes_per_second = l->bytes_per_second;
    const double latency = static_cast<double>(l->round_trip_us) / 2e6;
    hop.latency = hop.latency == 0 ? latency : std::min(hop.latency, latency);
  }
  return hop;
}

}  // namespace gyre
