// The files that a coordinator offers to workers without the model: the manifest and the header, in parts, and pieces
// over its ring port. The manifest is made once, when it is asked for first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/weights_part.h"
#include "model/weights.h"
#include "weights/weight_stock.h"

namespace gyre {

inline constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;

// Thread-safe.
class WeightOffer {
 public:
  // `cache`: where the manifest is kept. `port` outlives it.
  WeightOffer(std::shared_ptr<const Model> model, WeightCache cache, RingPort* port);
  ~WeightOffer();

  // Returns at once, from memory. If there is no manifest, its making begins; with `only_known` it does not, and the
  // error is kNotFound. kOutOfRange: the offset is past the end; errors of the files.
  StatusOr<WeightsPart> Part(uint64_t offset, bool only_known);
  // The random key that links for weights must have.
  const RingKey& key() const { return key_; }
  PieceServer& server() { return stock_.server(); }
  WeightStock* stock() { return &stock_; }  // its links measure, too

 private:
  struct Made {
    std::shared_ptr<PieceStore> store;
    std::vector<std::byte> bytes;  // of the encoded manifest, then of the header
    uint64_t manifest_bytes = 0;
  };
  // Returns the known manifest, or makes one. null: it is not known, and `only_known`.
  StatusOr<std::shared_ptr<const Made>> Make(bool only_known);
  void Run(bool only_known);

  const std::shared_ptr<const Model> model_;
  const RingKey key_;
  WeightStock stock_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> hashed_{0}, to_hash_{1};
  Mutex mutex_;
  std::optional<StatusOr<std::shared_ptr<const Made>>> made_ GYRE_GUARDED_BY(mutex_);
  bool running_ GYRE_GUARDED_BY(mutex_) = false;  // the thread works
  bool looked_ GYRE_GUARDED_BY(mutex_) = false;   // there is no manifest of an earlier time
  std::thread thread_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
