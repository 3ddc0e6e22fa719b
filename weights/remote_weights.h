// The receiving end of a WeightOffer: a model whose layers are not here.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "weights/weight_cache.h"
#include "weights/weight_offer.h"

namespace gyre {

using AskForPart = std::function<StatusOr<WeightsPart>(uint64_t offset)>;

struct RemoteManifest {
  std::shared_ptr<const Manifest> manifest;
  std::vector<std::byte> header;  // all header pieces; empty: they were not asked for
};

// Asks until all is there, but for what `cache` knows unless it is null. `waiting`, ten times a second and after each
// part: bytes done and in all, and whether they are hashed or received; true ends it with kCancelled. kDataLoss: parts
// that don't fit together.
StatusOr<RemoteManifest> FetchManifest(const AskForPart& ask, const WeightCache* cache, bool with_header,
                                       const std::function<bool(uint64_t done, uint64_t all, bool hashing)>& waiting);

// The store of a model that is not here, with its header checked: FetchManifest and WeightCache::Open.
StatusOr<std::shared_ptr<PieceStore>> OpenRemote(
    const AskForPart& ask, const WeightCache& cache,
    const std::function<bool(uint64_t done, uint64_t all, bool hashing)>& waiting);

}  // namespace gyre
