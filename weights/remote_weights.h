// The receiving end of a WeightOffer: a model whose layers are not on this machine.
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

// Asks until all parts are here, except those that `cache` (may be null) has. Calls `waiting` ten times a second and
// after each part: bytes done and in total, and whether they are hashed or received; true ends it with kCancelled.
// kDataLoss: the parts do not fit together.
StatusOr<RemoteManifest> FetchManifest(const AskForPart& ask, const WeightCache* cache, bool with_header,
                                       const std::function<bool(uint64_t done, uint64_t all, bool hashing)>& waiting);

// The store of a model that is not on this machine, with its header checked: FetchManifest and WeightCache::Open.
StatusOr<std::shared_ptr<PieceStore>> OpenRemote(
    const AskForPart& ask, const WeightCache& cache,
    const std::function<bool(uint64_t done, uint64_t all, bool hashing)>& waiting);

}  // namespace gyre
