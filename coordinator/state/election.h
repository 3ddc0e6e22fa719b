// The threads that lead or stand by: one sends the calls of Leadership (leadership.h) to etcd, the other one ends a
// leader in time, whatever the first one waits for.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "coordinator/state/etcd_client.h"
#include "coordinator/state/leadership.h"

namespace gyre {

// The time since the machine was started, with the time in which it was suspended (CLOCK_BOOTTIME): other machines'
// clocks go on meanwhile, and so does a lease. Not to be compared with Clock::now().
Deadline BootNow();

struct ElectionOptions {
  EtcdOptions etcd;
  LeadershipOptions leadership;
  std::string address;      // where this one is asked when it leads, HOST:PORT
  uint64_t first_term = 0;  // where etcd has none yet
  // Another coordinator leads; "" = none does. Called on the first thread when that changes.
  std::function<void(const std::string& leader)> on_leader;
  // This one has led, and its lease can't be renewed or belongs to another: it must stop all its work. On the second
  // thread.
  std::function<void()> on_lost;
  NowFn now = BootNow;  // the clock of the lease
};

class Election {
 public:
  static StatusOr<std::unique_ptr<Election>> Start(const ElectionOptions& options);
  // Returns the lease.
  virtual ~Election() = default;

  struct Reign {
    uint64_t term = 0;
    int64_t since = 0;  // the revision at which the leader's key was made
  };
  // Waits until this one leads. kCancelled: `stopped`, which is asked every 50 ms.
  virtual StatusOr<Reign> WaitToLead(const std::function<bool()>& stopped) = 0;
  // Called after a write that failed because another one leads. Any thread.
  virtual void Refused() = 0;
};

}  // namespace gyre
