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
  // `stock`: of this process; it gets the store of the model's pieces, its cache keeps the manifest. Outlives it.
  WeightOffer(std::shared_ptr<const Model> model, WeightStock* stock);
  ~WeightOffer();

  // Returns at once, from memory. If there is no manifest, its making begins. kOutOfRange: the offset is past the end;
  // errors of the files.
  StatusOr<WeightsPart> Part(uint64_t offset);
  // The random key that links for weights must have.
  const RingKey& key() const { return key_; }

 private:
  struct Made {
    std::shared_ptr<PieceStore> store;
    std::vector<std::byte> bytes;  // of the encoded manifest, then of the header
    uint64_t manifest_bytes = 0;
  };
  // Returns the manifest of an earlier time, or makes one.
  StatusOr<std::shared_ptr<const Made>> Make();
  void Run();

  const std::shared_ptr<const Model> model_;
  const RingKey key_;
  WeightStock& stock_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> hashed_{0}, to_hash_{1};
  Mutex mutex_;
  std::optional<StatusOr<std::shared_ptr<const Made>>> made_ GYRE_GUARDED_BY(mutex_);
  bool running_ GYRE_GUARDED_BY(mutex_) = false;  // the thread works
  std::thread thread_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
