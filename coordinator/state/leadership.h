// Leadership by a lease of etcd, as a pure state machine: answers and clock values come in, the next call goes out.
// docs/restart.md has the rules, election.h the thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "base/clock.h"
#include "base/status.h"

namespace gyre {

struct LeadershipOptions {
  Duration lease = std::chrono::seconds(3);         // asked of etcd, which may give more
  Duration look = std::chrono::milliseconds(200);   // between looks while another one leads
  Duration retry = std::chrono::milliseconds(100);  // after a call that failed
};

// Not thread-safe. One call is under way at a time: Next returns it, then the method of its name takes the answer.
// `asked` is the time when it was sent, by the same clock.
class Leadership {
 public:
  explicit Leadership(const LeadershipOptions& options) : options_(options) {}

  struct Look {};  // who leads?
  struct Grant {};
  struct Campaign {
    int64_t lease = 0;
  };
  struct Renew {
    int64_t lease = 0;
  };
  using Call = std::variant<Look, Grant, Campaign, Renew>;
  // nullopt: no call is due before deadline(), or one is under way, or it is over.
  std::optional<Call> Next(Deadline now);
  Deadline deadline() const;

  // `taken`: whether a coordinator leads.
  void Looked(const StatusOr<bool>& taken, Deadline now);
  struct Lease {
    int64_t id = 0;
    Duration life{};
  };
  void Granted(const StatusOr<Lease>& lease, Deadline asked, Deadline now);
  // `won`: this one leads.
  void Campaigned(const StatusOr<bool>& won, Deadline now);
  // The lease's new life, zero if it has ended.
  void Renewed(const StatusOr<Duration>& life, Deadline asked, Deadline now);
  // Called after a write that was refused because another one leads.
  void Refused() {
    if (state_ == State::kLeading) state_ = State::kLost;
  }

  // Certain: etcd gives nobody else the lead before `until`.
  bool Leads(Deadline now) const { return state_ == State::kLeading && now < until_; }
  // It has led and no longer does; this state is final.
  bool Lost(Deadline now) const { return state_ == State::kLost || (state_ == State::kLeading && now >= until_); }
  // The time when a leader has to stop, unless the lease is renewed.
  Deadline until() const { return until_; }
  int64_t lease() const { return lease_; }

 private:
  enum class State { kWatching, kFree, kGranted, kLeading, kLost };
  // Counted by the own clock from the sending of the call, as etcd counts from later on; clocks may differ by a fifth.
  static Deadline SureUntil(Deadline asked, Duration life) { return asked + life * 4 / 5; }

  LeadershipOptions options_;
  State state_ = State::kWatching;
  bool under_way_ = false;
  Deadline next_ = Deadline::min();
  int64_t lease_ = 0;
  Duration life_{};
  Deadline until_ = Deadline::min();
};

}  // namespace gyre
