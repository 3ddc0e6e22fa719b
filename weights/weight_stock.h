// The source of the layers' bytes for a worker's loader: its model's files, which are compared with the coordinator's
// manifest, or the cache, into which missing pieces are fetched.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/measured.h"
#include "base/mutex.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "transport/ring_port.h"
#include "weights/fetch.h"
#include "weights/piece_server.h"
#include "weights/piece_store.h"
#include "weights/weight_cache.h"

namespace gyre {

// The loading of one stage. Used by one thread.
class WeightLoading {
 public:
  // Blocks until the pieces of the layer, or of the ends, are here and right. Errors as Fetch::Wait, and
  // kFailedPrecondition: this machine's file differs from the coordinator's.
  Status WaitForLayer(int layer, const std::function<bool()>& cancelled);
  Status WaitForEnds(const std::function<bool()>& cancelled);
  uint64_t fetched_bytes() const { return fetch_ == nullptr ? 0 : fetch_->done_bytes(); }
  // Rises while bytes come or are hashed.
  uint64_t activity() const { return (fetch_ == nullptr ? 0 : fetch_->heard_bytes()) + checked_; }
  uint64_t to_fetch_bytes() const { return fetch_ == nullptr ? 0 : fetch_->total_bytes(); }

 private:
  friend class WeightStock;
  Status WaitFor(const std::vector<uint32_t>& pieces, const std::function<bool()>& cancelled);

  std::shared_ptr<PieceStore> store_;  // null: nothing is known to compare with
  int threads_ = 1;
  LayerRange range_;
  NeededPieces needed_;
  std::unique_ptr<Fetch> fetch_;
  uint64_t checked_ = 0;  // pieces
};

struct LoadingRequest {
  LayerRange range;
  std::vector<int> layers;  // of the range, those that are to be loaded
  bool first = false, last = false, tied_head = false;
  bool ends = false;  // these too
  LayerRange in_use;  // layers that a stage of this process runs: their pieces stay
  std::vector<WeightSource> sources;
  std::string name;  // of this member
  Transport transport = Transport::kAuto;
  int threads = 1;  // for hashing
};

// Thread-safe.
class WeightStock {
 public:
  // Sends pieces to others at `port`, which outlives it.
  WeightStock(WeightCache cache, RingPort* port) : cache_(std::move(cache)), port_(port), server_(port) {}

  const WeightCache& cache() const { return cache_; }
  PieceServer& server() { return server_; }
  // The key of links for weights, to others and from them.
  void SetKey(const RingKey& key);
  // Measures the link to another process of the cluster. Blocks for some seconds at most.
  LinkSpeed Probe(const WeightSource& peer, const std::string& name, Transport transport);
  // The store of this process; null: nothing is known of its model's pieces.
  void SetStore(std::shared_ptr<PieceStore> store);
  std::shared_ptr<PieceStore> store();

  // Begins to fetch the absent pieces. kResourceExhausted: there is no room for them. kCancelled.
  StatusOr<std::unique_ptr<WeightLoading>> Begin(const LoadingRequest& request, const std::function<bool()>& cancelled);

 private:
  const WeightCache cache_;
  RingPort* const port_;
  PieceServer server_;
  Mutex mutex_;
  std::shared_ptr<PieceStore> store_ GYRE_GUARDED_BY(mutex_);
  RingKey key_ GYRE_GUARDED_BY(mutex_){};
};

// Hashes the unchecked pieces with `threads` threads. Returns the wrong or absent ones, in their order; none if
// `cancelled` ended it.
std::vector<uint32_t> CheckPieces(PieceStore& store, const std::vector<uint32_t>& pieces, int threads,
                                  const std::function<bool()>& cancelled);

}  // namespace gyre
