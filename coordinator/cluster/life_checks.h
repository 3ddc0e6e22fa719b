// Finds out whether a worker's process is gone: its machine refuses connections to the port where it listened.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/inbox.h"

namespace gyre {

// Thread-safe.
class LifeChecks {
 public:
  struct Check {
    std::string worker;
    uint64_t member = 0;  // of a Membership; 0 = a worker of the coordinator's predecessor
    std::string address;  // HOST:PORT
    bool operator==(const Check&) const = default;
  };
  // `gone` is called on a thread of this object, once for each check whose process is gone. Whether others live is not
  // said: they may be out of reach.
  explicit LifeChecks(std::function<void(const Check&)> gone) : gone_(std::move(gone)) {}
  // Waits for the attempt that is under way.
  ~LifeChecks();
  // Tries for a second and a half, as a process that dies closes its ports one after the other. Returns at once.
  void Begin(Check check);

 private:
  struct Attempt {
    Check check;
    Deadline at;
    size_t number = 0;
  };
  void Run();

  const std::function<void(const Check&)> gone_;
  std::atomic<bool> stopping_{false};
  Inbox<Attempt> begun_;
  std::thread thread_;  // from the first check on; by the thread that begins it
};

}  // namespace gyre
