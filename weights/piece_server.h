// Sends pieces to other processes, over bulk links of the ring port: docs/wire.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/link.h"
#include "transport/link_threads.h"
#include "transport/ring_port.h"
#include "weights/piece_store.h"

namespace gyre {

// Thread-safe.
class PieceServer {
 public:
  // `port` outlives it. Serves from SetKey on.
  explicit PieceServer(RingPort* port) : port_(port) {}
  ~PieceServer();
  // From now on links with this key are served.
  void SetKey(const RingKey& key);
  // From now on pieces come from this store; null: there are none.
  void SetStore(std::shared_ptr<PieceStore> store);
  uint64_t bytes_sent() const { return bytes_sent_; }
  // The most bytes a second that all links together send; 0 = no limit.
  void SetRate(uint64_t bytes_per_second) { rate_ = bytes_per_second; }
  // For tests: every piece has one bit flipped.
  void FlipBitsForTest(bool flip) { flip_ = flip; }

 private:
  void OnLink(std::unique_ptr<Link> link);
  Status Serve(Link& link);
  // Waits until the rate allows `bytes` more bytes.
  void WaitForTurn(uint64_t bytes);
  Status Answer(Link& link, const Frame& frame, std::vector<std::byte>* buffer);

  RingPort* const port_;
  std::atomic<bool> stopping_{false}, flip_{false};
  std::atomic<uint64_t> bytes_sent_{0}, rate_{0};
  Mutex mutex_;
  std::shared_ptr<PieceStore> store_ GYRE_GUARDED_BY(mutex_);
  Deadline free_at_ GYRE_GUARDED_BY(mutex_) = Deadline::min();  // when the rate allows the next piece
  LinkThreads threads_{256};
};

}  // namespace gyre
