// The parts of a process, put together: a model, its workers, and the cluster and engine that drive them. This
// is a ring within the process, or the coordinator's end of a ring over machines.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/plan.h"
#include "base/status.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/remote_drafter.h"
#include "coordinator/service/service.h"
#include "kernels/device.h"
#include "model/weights.h"
#include "runtime/options.h"
#include "transport/ring_port.h"
#include "weights/weight_stock.h"
#include "worker/worker.h"

namespace gyre {

struct KvChoice;

class Runtime {
 public:
  // Opens the model and starts engine and cluster. Within the process it waits until every stage has loaded and packed
  // its weights (progress on stderr).
  static StatusOr<std::unique_ptr<Runtime>> Open(const RuntimeOptions& options);
  ~Runtime();

  Engine& engine() { return *engine_; }
  Cluster& cluster() { return *cluster_; }
  RingPort& port() { return *port_; }
  Service& service() { return *service_; }
  // The model's pieces and their hashes. With them the workers of this process check what they load, and other
  // processes get what they lack. Null if the process serves no cluster.
  WeightStock* weights() { return weights_.get(); }
  // For workers that draft. Null: the process serves no cluster, or has another drafter, or settings leave out drafts.
  RemoteDrafter* remote_drafter() { return remote_drafter_.get(); }
  const std::shared_ptr<const Model>& model_ptr() const { return model_; }
  const Model& model() const { return *model_; }
  uint32_t context() const { return context_; }
  bool context_shift() const { return context_shift_; }
  uint64_t term() const { return term_; }
  // The members in this process, in the order of the first plan.
  const std::vector<std::shared_ptr<Worker>>& workers() const { return workers_; }
  // Reports the load of the workers in this process to the cluster. Thread-safe.
  void ReportLoads();

 private:
  // A member in this process.
  struct LocalMember {
    std::string name;
    std::shared_ptr<Device> device;  // null: some of the host's processors
    uint64_t memory = 0;             // bytes for layers; 0 = not checked
    std::optional<LayerRange> layers;
  };

  static StatusOr<std::unique_ptr<Runtime>> TryOpen(const RuntimeOptions& options);
  static StatusOr<std::shared_ptr<Device>> OpenOwnMemory(const RuntimeOptions& options);
  Runtime() = default;
  StatusOr<std::vector<LocalMember>> MembersAlone(const RuntimeOptions& options, const KvChoice& cache,
                                                  KvType kv) const;
  Status AddWorkers(const RuntimeOptions& options, std::span<const LocalMember> members);
  Status Start(const RuntimeOptions& options, const KvChoice& cache, KvType kv, int members);

  std::shared_ptr<const Model> model_;
  std::shared_ptr<const Model> draft_model_;  // null: there is none
  bool mtp_ = false;                          // the last stage has the model's layer for drafts
  uint64_t draft_bytes_ = 0;                  // that its weights and KV cache take
  std::shared_ptr<Device> device_;            // with memory of its own; null: the host's processors compute
  uint32_t context_ = 0;
  bool context_shift_ = false;
  uint64_t term_ = 0;
  std::unique_ptr<RingPort> port_;
  std::unique_ptr<WeightStock> weights_;
  std::shared_ptr<RemoteDrafter> remote_drafter_;  // the engine uses it
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Service> service_;
  std::vector<std::unique_ptr<RingPort>> worker_ports_;  // of a ring within the process over TCP
  std::vector<std::shared_ptr<Worker>> workers_;
};

// The term of a coordinator without a state: milliseconds since 1970.
uint64_t TermNow();

}  // namespace gyre
