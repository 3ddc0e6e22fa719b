// The thread that leads or stands by: carries the calls of Leadership (leadership.h) to etcd.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "coordinator/standby/etcd_client.h"
#include "coordinator/standby/leadership.h"

namespace gyre {

struct ElectionOptions {
  EtcdOptions etcd;
  LeadershipOptions leadership;
  std::string address;      // where this one is asked when it leads, HOST:PORT
  uint64_t first_term = 0;  // where etcd has none yet
  // Another one leads; "" = nobody does. Called on the thread when that changes.
  std::function<void(const std::string& leader)> on_leader;
  // It has led, and its lease can't be renewed any more or is another one's: nothing may go on. On the thread.
  std::function<void()> on_lost;
};

class Election {
 public:
  static StatusOr<std::unique_ptr<Election>> Start(const ElectionOptions& options);
  // Gives the lease back.
  virtual ~Election() = default;

  struct Reign {
    uint64_t term = 0;
    int64_t since = 0;  // the revision at which the leader's key was made
  };
  // Waits until this one leads. kCancelled: `stopped` said so, which is asked every 50 ms.
  virtual StatusOr<Reign> WaitToLead(const std::function<bool()>& stopped) = 0;
  // A write found that another one leads. Any thread.
  virtual void Refused() = 0;
};

}  // namespace gyre
