// The model of a worker's process: its file on this machine, or a store whose pieces are fetched (docs/weights.md). Not
// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "model/weights.h"
#include "proto/control_codec.h"
#include "weights/weight_stock.h"
#include "worker/node.h"

namespace gyre {

class NodeModel {
 public:
  // options: outlives it. ends: the process is to stop. say: lines for people. before_change: what uses the model that
  // is there must let go of it.
  NodeModel(const NodeOptions& options, std::function<bool()> ends, std::function<void(const std::string&)> say,
            std::function<void()> before_change)
      : options_(options), ends_(std::move(ends)), say_(std::move(say)), before_change_(std::move(before_change)) {}

  // Opens the coordinator's model, if it is another one than before or nothing uses it. kCancelled: the process is to
  // stop. An error for which TakePassing() is true may pass. Another error makes this worker useless.
  Status OpenFor(const ClusterFacts& facts, v1::Cluster::Stub& stub, WeightStock& stock, bool in_use);
  // Whether the last OpenFor failed because the coordinator did not answer or the cache's disk was full. Forgets it.
  bool TakePassing() { return std::exchange(passing_, false); }

  // REQUIRES for the others: OpenFor has succeeded.
  const std::shared_ptr<const Model>& model() const { return model_; }
  bool exact() const { return exact_; }
  // Null: nothing is fetched.
  const PieceStore* store() const { return store_.get(); }

 private:
  // The model's file on this machine.
  StatusOr<std::shared_ptr<const Model>> OpenFile(const ClusterFacts& facts, const OpenOptions& open) const;
  // The model of other_models with this hash, or nullptr.
  std::shared_ptr<const Model> FindByHash(uint64_t hash, const OpenOptions& open) const;
  // The store of a model whose weights are fetched.
  StatusOr<std::shared_ptr<PieceStore>> OpenStore(v1::Cluster::Stub& stub, const WeightCache& cache);
  StatusOr<WeightsPart> AskForPart(v1::Cluster::Stub& stub, uint64_t offset);
  // The store over this machine's file, whose layers are compared with the coordinator's manifest when they are loaded;
  // the header is compared here. null: the coordinator has no manifest. kFailedPrecondition: the two files differ.
  StatusOr<std::shared_ptr<PieceStore>> Compare(const std::shared_ptr<const Model>& model, v1::Cluster::Stub& stub,
                                                const WeightCache& cache);
  // Says at times how far the coordinator's hashing of its model is.
  std::function<bool(uint64_t done, uint64_t all, bool hashing)> WhileItHashes();

  const NodeOptions& options_;
  const std::function<bool()> ends_;
  const std::function<void(const std::string&)> say_;
  const std::function<void()> before_change_;
  std::shared_ptr<const Model> model_;
  std::shared_ptr<PieceStore> store_;
  bool exact_ = false;
  bool passing_ = false;
  bool told_full_ = false;  // that it waits for room on the disk
};

}  // namespace gyre
