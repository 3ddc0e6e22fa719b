#include "transport/unclaimed_links.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <vector>

namespace gyre {
namespace {

constexpr char kPlanIsOver[] = "its hello has a plan that is over";

}  // namespace

bool StillWaits(int socket) {
  char byte;
  return ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

KeyCheck UnclaimedLinks::Check(Hello* hello) const {
  if (ServedLocked(*hello)) {
    if (!Proves(*hello, served_key_)) return KeyCheck::kWrong;
    hello->key = served_key_;
    return KeyCheck::kRight;
  }
  if (newest_ == 0 || hello->epoch.term != term_) return KeyCheck::kUnknownTerm;
  if (hello->epoch.number > newest_) return KeyCheck::kUnknownPlan;
  const auto it = keys_.find(hello->epoch.number);
  if (it == keys_.end()) return KeyCheck::kGone;
  if (!Proves(*hello, it->second)) return KeyCheck::kWrong;
  hello->key = it->second;
  return KeyCheck::kRight;
}

Arrival UnclaimedLinks::Add(UnclaimedLink* link) {
  const bool inside = link->link != nullptr;  // its other end is in this process
  if (!inside) DropDead();
  const Caller caller = link->connection.caller;
  Links displaced;
  const char* wrong = nullptr;
  bool late = false;
  {
    MutexLock lock(&mutex_);
    const KeyCheck check = inside ? KeyCheck::kRight : Check(&link->hello);
    const bool bulk = link->hello.role == LinkRole::kBulk;
    link->verified = check == KeyCheck::kRight;
    if (bulk && link->verified) return Arrival::kReady;
    if (check == KeyCheck::kWrong) {
      wrong = "its hello has a wrong key";
    } else if (check == KeyCheck::kGone) {
      wrong = kPlanIsOver;
      late = true;
    } else if (bulk && check == KeyCheck::kUnknownTerm) {
      wrong = "its hello has a term whose key is not known here";
    } else if (CancelledLocked(link->hello.epoch)) {
      return Arrival::kRefused;
    } else if (!inside) {
      displaced = MakeRoom(*link);
      const auto verified = std::count_if(links_.begin(), links_.end(), [](const auto& l) { return l.verified; });
      if (link->verified && static_cast<size_t>(verified) >= options_.max_verified) {
        wrong = "too many links wait to be claimed";
      }
    }
    if (wrong == nullptr) {
      link->id = next_id_++;
      link->since = Clock::now();
      links_.push_back(std::move(*link));
      changed_.SignalAll();
    }
  }
  Refuse(displaced, "too many links wait for the key of their plan");
  if (wrong != nullptr) options_.on_refused(caller, wrong, late);
  return wrong != nullptr ? Arrival::kRefused : Arrival::kWaits;
}

// Links with the right key are never removed for others.
UnclaimedLinks::Links UnclaimedLinks::MakeRoom(const UnclaimedLink& newcomer) {
  if (newcomer.verified) return {};
  std::vector<std::string> addresses;
  std::vector<uint64_t> ids;
  for (const UnclaimedLink& l : links_) {
    if (l.verified) continue;
    addresses.push_back(l.connection.caller.address);
    ids.push_back(l.id);
  }
  const auto i = GivesWay(addresses, newcomer.connection.caller.address, options_.unverified);
  if (!i) return {};
  return Take([id = ids[*i]](const UnclaimedLink& l) { return l.id == id; });
}

UnclaimedLinks::Links UnclaimedLinks::Take(const std::function<bool(const UnclaimedLink&)>& which) {
  Links taken;
  for (auto it = links_.begin(); it != links_.end();) {
    const auto next = std::next(it);
    if (which(*it)) taken.splice(taken.end(), links_, it);
    it = next;
  }
  return taken;
}

void UnclaimedLinks::Refuse(const Links& links, const char* why, bool late) {
  for (const UnclaimedLink& l : links) options_.on_refused(l.connection.caller, why, late);
}

void UnclaimedLinks::DropDead() {
  std::vector<std::pair<uint64_t, int>> sockets;
  {
    MutexLock lock(&mutex_);
    for (const UnclaimedLink& l : links_) {
      if (l.connection.socket.ok()) sockets.emplace_back(l.id, l.connection.socket.get());
    }
  }
  // A claimed socket's number may belong to another socket by now; then its id is gone from the list.
  std::set<uint64_t> dead;
  for (const auto& [id, socket] : sockets) {
    if (!StillWaits(socket)) dead.insert(id);
  }
  const Deadline limit = Clock::now() - options_.timeout;
  Links gone, late;
  {
    MutexLock lock(&mutex_);
    gone = Take([&dead](const UnclaimedLink& l) { return dead.count(l.id) > 0; });
    late = Take([limit](const UnclaimedLink& l) { return !l.verified && l.since < limit; });
  }
  Refuse(late, "its hello has a plan whose key did not come in time");
}

std::vector<UnclaimedLink> UnclaimedLinks::SetKey(Epoch epoch, const RingKey& key) {
  Links wrong, late, bulk;
  {
    MutexLock lock(&mutex_);
    if (CancelledLocked(epoch)) return {};
    if (term_ != epoch.term) {
      keys_.clear();
      newest_ = 0;
      served_.reset();
    }
    term_ = epoch.term;
    newest_ = std::max(newest_, epoch.number);
    keys_[epoch.number] = key;
    while (keys_.size() > kKeys) keys_.erase(keys_.begin());
    std::set<uint64_t> refused, gone;
    for (UnclaimedLink& l : links_) {
      if (l.link != nullptr) continue;
      const KeyCheck check = Check(&l.hello);
      if (check == KeyCheck::kWrong) refused.insert(l.id);
      if (check == KeyCheck::kGone || (check == KeyCheck::kUnknownTerm && l.verified)) gone.insert(l.id);
      l.verified = check == KeyCheck::kRight;
    }
    wrong = Take([&refused](const UnclaimedLink& l) { return refused.count(l.id) > 0; });
    late = Take([&gone](const UnclaimedLink& l) { return gone.count(l.id) > 0; });
    bulk = Take([](const UnclaimedLink& l) { return l.hello.role == LinkRole::kBulk && l.verified; });
  }
  Refuse(wrong, "its hello has a wrong key");
  Refuse(late, kPlanIsOver, true);
  return {std::make_move_iterator(bulk.begin()), std::make_move_iterator(bulk.end())};
}

StatusOr<UnclaimedLink> UnclaimedLinks::Claim(const Hello& expected, Deadline deadline) {
  MutexLock lock(&mutex_);
  for (;;) {
    if (CancelledLocked(expected.epoch)) return absl::CancelledError("the plan was given up");
    for (auto it = links_.begin(); it != links_.end(); ++it) {
      if (it->hello.role != LinkRole::kRing || it->hello.epoch != expected.epoch || it->hello.hop != expected.hop)
        continue;
      UnclaimedLink found = std::move(*it);
      links_.erase(it);
      return found;
    }
    if (!changed_.WaitUntil(&mutex_, deadline) && Clock::now() >= deadline) {
      return DeadlineExceeded("hop {} of plan {}: nobody dialed it", expected.hop, expected.epoch.number);
    }
  }
}

void UnclaimedLinks::Cancel(Epoch epoch) {
  Links dropped;  // they close without the lock
  MutexLock lock(&mutex_);
  uint64_t& number = cancelled_[epoch.term];
  number = std::max(number, epoch.number);
  if (cancelled_.size() > kTerms) cancelled_.erase(cancelled_.begin());
  if (epoch.term == term_) keys_.erase(keys_.begin(), keys_.upper_bound(epoch.number));
  dropped = Take([&](const UnclaimedLink& l) GYRE_NO_ANALYSIS { return CancelledLocked(l.hello.epoch); });
  changed_.SignalAll();
}

void UnclaimedLinks::Serves(Epoch epoch) {
  {
    MutexLock lock(&mutex_);
    const auto key = keys_.find(epoch.number);
    // Other members of this process may have said it before.
    if (epoch.term == term_ && key != keys_.end()) {
      served_ = epoch;
      served_key_ = key->second;
    }
  }
  Cancel(epoch);
}

bool UnclaimedLinks::Cancelled(const Hello& hello) const {
  MutexLock lock(&mutex_);
  return CancelledLocked(hello.epoch) && !ServedLocked(hello);
}

size_t UnclaimedLinks::size() const {
  MutexLock lock(&mutex_);
  return links_.size();
}

size_t UnclaimedLinks::keys() const {
  MutexLock lock(&mutex_);
  return keys_.size();
}

}  // namespace gyre
