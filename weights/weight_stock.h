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
  // Blocks until the pieces of the layer, or of the ends, are here and right: each is read and checked. Damaged pieces
  // of the cache are fetched again. Errors as Fetch::Wait; kFailedPrecondition: this machine's file differs from the
  // coordinator's; kDataLoss: the disk damages what is written to it.
  Status WaitForLayer(int layer, const std::function<bool()>& cancelled);
  Status WaitForEnds(const std::function<bool()>& cancelled);
  uint64_t fetched_bytes() const { return Sum(&Fetch::done_bytes); }
  // Rises while bytes come or are checked.
  uint64_t activity() const { return Sum(&Fetch::heard_bytes) + checked_; }
  uint64_t to_fetch_bytes() const { return Sum(&Fetch::total_bytes); }

 private:
  friend class WeightStock;
  uint64_t Sum(uint64_t (Fetch::*bytes)() const) const;
  Status WaitFor(const std::vector<uint32_t>& pieces, const std::function<bool()>& cancelled);
  Status FetchPieces(const std::vector<uint32_t>& pieces);

  std::shared_ptr<PieceStore> store_;  // null: nothing is known to compare with
  const WeightCache* cache_ = nullptr;
  std::vector<WeightSource> sources_;
  FetchOptions options_;
  std::vector<uint32_t> keep_;  // pieces that stay when room is made
  int threads_ = 1;
  LayerRange range_;
  NeededPieces needed_;
  std::vector<std::unique_ptr<Fetch>> fetches_;  // that of what was absent, and those of what turned out to be damaged
  std::vector<uint32_t> absent_;                 // when the loading began, in order of number
  uint64_t checked_ = 0;                         // pieces
};

struct LoadingRequest {
  LayerRange range;
  std::vector<int> layers;  // of the range, those that are to be loaded
  bool first = false, last = false, tied_head = false;
  bool mtp = false;   // the last stage's ends have the layer for drafts, too
  int per_block = 1;  // ModelSpec::layers_per_block
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

  // Begins to fetch the absent pieces. kResourceExhausted: there is no room for them.
  StatusOr<std::unique_ptr<WeightLoading>> Begin(const LoadingRequest& request);

 private:
  const WeightCache cache_;
  RingPort* const port_;
  PieceServer server_;
  Mutex mutex_;
  std::shared_ptr<PieceStore> store_ GYRE_GUARDED_BY(mutex_);
  RingKey key_ GYRE_GUARDED_BY(mutex_){};
};

// Checks the pieces with at most `threads` threads. Returns the wrong or absent ones, in their order; none if
// `cancelled` ended it.
std::vector<uint32_t> CheckPieces(PieceStore& store, const std::vector<uint32_t>& pieces, int threads,
                                  const std::function<bool()>& cancelled);

}  // namespace gyre
