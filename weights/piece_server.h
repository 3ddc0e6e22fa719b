// Gives pieces to other processes, over bulk links of the ring port: docs/wire.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/link.h"
#include "transport/ring_port.h"
#include "weights/piece_store.h"

namespace gyre {

// Thread-safe.
class PieceServer {
 public:
  // Serves at `port`, which outlives it, under kPieceServerName.
  explicit PieceServer(RingPort* port);
  ~PieceServer();
  // From now on pieces come from this store; null: none.
  void SetStore(std::shared_ptr<PieceStore> store);
  uint64_t bytes_sent() const { return bytes_sent_; }
  // Tests and benchmarks: each link sends at most so many bytes a second, 0 = no limit; and every piece has a bit
  // flipped.
  void LimitForTest(uint64_t bytes_per_second) { limit_ = bytes_per_second; }
  void FlipBitsForTest(bool flip) { flip_ = flip; }

 private:
  struct Server {
    std::shared_ptr<Link> link;
    std::thread thread;
    bool done = false;
  };
  void OnLink(std::unique_ptr<Link> link);
  Status Serve(Link& link);
  Status Answer(Link& link, const Frame& frame);

  RingPort* const port_;
  std::atomic<bool> stopping_{false}, flip_{false};
  std::atomic<uint64_t> bytes_sent_{0}, limit_{0};
  Mutex mutex_;
  std::shared_ptr<PieceStore> store_ GYRE_GUARDED_BY(mutex_);
  std::list<Server> servers_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
