// Measures the links from this process to others when the coordinator asks for it, on its own thread.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/inbox.h"
#include "base/stage_control.h"
#include "weights/weight_stock.h"

namespace gyre {

// Thread-safe.
class LinkProber {
 public:
  // `stock` outlives it. `done` is called on the prober's thread, once for each request that was not given up.
  LinkProber(WeightStock* stock, std::function<void(StageProbed)> done) : stock_(stock), done_(std::move(done)) {}
  // Waits for the measurement under way: a few seconds at most.
  ~LinkProber();
  // Returns at once; requests run one after the other. `name`: of this process.
  void Ask(std::vector<WeightSource> peers, std::string name, Transport transport);

 private:
  struct Request {
    std::vector<WeightSource> peers;
    std::string name;
    Transport transport = Transport::kAuto;
  };
  void Run();

  WeightStock* const stock_;
  const std::function<void(StageProbed)> done_;
  std::atomic<bool> stopping_{false};
  Inbox<Request> requests_;
  std::thread thread_;  // from the first request on; by the thread that asks
};

}  // namespace gyre
