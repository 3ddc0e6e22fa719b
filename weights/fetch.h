// Fetches pieces from several sources at once, over several links each. FetchPolicy chooses the source of each piece.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "transport/ring_port.h"
#include "weights/fetch_policy.h"
#include "weights/piece_store.h"

namespace gyre {

struct FetchOptions {
  RingPort* port = nullptr;  // outlives the fetch
  RingKey key{};             // of links for weights
  std::string from;          // this member
  Transport transport = Transport::kAuto;
  size_t links_per_source = 2;
  size_t most_links = 8;
  Duration link_silence = std::chrono::seconds(30);  // a link that owes pieces and brings no byte is given up
  FetchRules rules;
};

class Fetch {
 public:
  // Begins at once, in the order of `wanted`, which are absent in `store`.
  Fetch(std::shared_ptr<PieceStore> store, const std::vector<uint32_t>& wanted, std::vector<WeightSource> sources,
        FetchOptions options);
  // Ends the fetch; may wait for a dial that is under way.
  ~Fetch();

  // Blocks until these pieces are here. kCancelled (if `cancelled` is true, which is asked ten times a second),
  // kNotFound (no source has one), kUnavailable (no bytes come), kResourceExhausted (the disk is full).
  Status Wait(const std::vector<uint32_t>& pieces, const std::function<bool()>& cancelled);
  // The bytes that came, and all that were wanted. Thread-safe.
  uint64_t done_bytes() const { return done_bytes_; }
  uint64_t total_bytes() const { return total_bytes_; }
  // The bytes that came, also those of incomplete pieces. Thread-safe.
  uint64_t heard_bytes() const { return heard_bytes_; }

 private:
  void Run(SourceId source, FetchLinkId id);
  // Pulls until all is done, or the link ends.
  Status Pull(Link& link, SourceId source, FetchLinkId id);
  Status Take(const Frame& frame, SourceId source, FetchLinkId id, std::vector<uint32_t>* owed);
  bool Ends();

  const std::shared_ptr<PieceStore> store_;
  const std::vector<WeightSource> sources_;
  const FetchOptions options_;
  uint64_t total_bytes_ = 0;
  std::atomic<uint64_t> done_bytes_{0}, heard_bytes_{0};

  Mutex mutex_;
  CondVar changed_;
  FetchPolicy policy_ GYRE_GUARDED_BY(mutex_);
  bool stopping_ GYRE_GUARDED_BY(mutex_) = false;
  Status fatal_ GYRE_GUARDED_BY(mutex_);  // this machine can't take pieces
  std::vector<std::thread> threads_;
};

}  // namespace gyre
