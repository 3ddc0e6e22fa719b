// Decides which new connections are served at once, which wait for their turn, and which give way. Pure.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/admission.h"
#include "transport/rate_limit.h"

namespace gyre::http {

// Not thread-safe. T: a connection of which nothing was read.
template <class T>
class Arrivals {
 public:
  // timeout: how long one may wait.
  Arrivals(const AddressLimits& rate, const AdmissionLimits& waiting, Duration timeout)
      : budget_(rate), limits_(waiting), timeout_(timeout) {}

  struct Outcome {
    std::optional<T> serve;     // the newcomer, if it need not wait
    std::optional<T> give_way;  // one that waited, and has to end
  };
  Outcome Arrive(const std::string& host, T connection, Deadline now) {
    Outcome out;
    std::string group = AddressGroup(host);
    bool behind = false;  // others of its address wait
    for (const Waiting& w : waiting_) behind = behind || w.group == group;
    if (!behind && budget_.Take(group, now)) {
      out.serve = std::move(connection);
      return out;
    }
    std::vector<std::string> groups;
    for (const Waiting& w : waiting_) groups.push_back(w.group);
    if (const auto i = GivesWay(groups, group, limits_)) {
      const auto it = waiting_.begin() + static_cast<std::ptrdiff_t>(*i);
      out.give_way = std::move(it->connection);
      waiting_.erase(it);
    }
    waiting_.push_back({std::move(group), std::move(connection), now + timeout_});
    return out;
  }
  // Those whose turn has come, the oldest of each address first.
  std::vector<T> Turns(Deadline now) {
    std::vector<T> out;
    std::deque<Waiting> left;
    for (Waiting& w : waiting_) {
      if (budget_.Take(w.group, now)) {
        out.push_back(std::move(w.connection));
      } else {
        left.push_back(std::move(w));
      }
    }
    waiting_ = std::move(left);
    return out;
  }
  // Those that have waited for too long.
  std::vector<T> Expired(Deadline now) {
    std::vector<T> out;
    for (; !waiting_.empty() && waiting_.front().until <= now; waiting_.pop_front())
      out.push_back(std::move(waiting_.front().connection));
    return out;
  }
  size_t waiting() const { return waiting_.size(); }
  void Clear() { waiting_.clear(); }

 private:
  struct Waiting {
    std::string group;
    T connection;
    Deadline until;
  };
  AddressBudget budget_;
  const AdmissionLimits limits_;
  const Duration timeout_;
  std::deque<Waiting> waiting_;  // the oldest first
};

}  // namespace gyre::http
