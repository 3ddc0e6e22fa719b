// The coordinator's two links of a plan, made on a thread of its own for each plan, as connecting may take minutes.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "base/plan.h"
#include "base/status.h"
#include "transport/ring_port.h"

namespace gyre {

struct RingEnds {
  std::shared_ptr<Link> to_first, from_last;  // null where the status is an error
  Status to_first_status, from_last_status;
};

// Used by one thread, but for what `done` does.
class Wiring {
 public:
  // `done` is called once for each plan, on a thread of the wiring; it must not block. The port outlives the wiring.
  Wiring(RingPort* port, std::function<void(Epoch, RingEnds)> done) : port_(port), done_(std::move(done)) {}
  ~Wiring() { Stop(); }
  void Start(const Plan& plan);
  // Ends what is under way for this epoch and older ones; does not wait for it.
  void Cancel(Epoch epoch) { port_->Cancel(epoch); }
  // Waits for all that is under way. REQUIRES: it was cancelled.
  void Stop();

 private:
  struct Job {
    std::atomic<bool> done{false};
    std::thread thread;
  };
  RingEnds Connect(const Plan& plan);
  void Run(const Plan& plan);
  void JoinDone();

  RingPort* const port_;
  const std::function<void(Epoch, RingEnds)> done_;
  std::list<Job> jobs_;
};

}  // namespace gyre
