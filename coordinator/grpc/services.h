// The services behind the gRPC port. For grpc_*.cc only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/mutex.h"
#include "coordinator/grpc/remote_stage.h"
#include "coordinator/grpc/server.h"

namespace grpc {
class Service;
}

namespace gyre {

// Clients' requests (clients.cc).
std::unique_ptr<grpc::Service> MakeInferenceService(const GrpcServerOptions& options, const Model& model,
                                                    const Cluster& cluster, Service& service);

class AttachReactor;

// The attached workers, so that silent ones are found, and the memberships that a stream may reattach to.
// Thread-safe.
class AttachedWorkers {
 public:
  // A number for its stream.
  uint64_t Add(AttachReactor* r) {
    MutexLock lock(&mutex_);
    all_.insert(r);
    return ++streams_;
  }
  // The membership of a process, by its instance number.
  struct Known {
    Membership member;
    std::shared_ptr<RemoteStage> stage;
  };
  void Remember(uint64_t instance, Known known) {
    MutexLock lock(&mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.stage->ended(); });
    if (instance != 0) known_[instance] = std::move(known);
  }
  std::optional<Known> Find(uint64_t instance) {
    MutexLock lock(&mutex_);
    const auto it = known_.find(instance);
    return it == known_.end() ? std::nullopt : std::optional(it->second);
  }
  void Remove(AttachReactor* r) {
    MutexLock lock(&mutex_);
    all_.erase(r);
  }
  // Ends the streams of workers that were silent for `timeout`. `own_stall`: for how long this process could not listen
  // since the last call; it does not count as silence.
  void Check(Duration timeout, Duration own_stall);
  void CancelAll();
  // Ends the streams of workers whose certificate `identity` accepts no more, and tells the others who is revoked.
  void CheckCallers(const Identity& identity);

 private:
  Mutex mutex_;
  std::set<AttachReactor*> all_ GYRE_GUARDED_BY(mutex_);
  std::map<uint64_t, Known> known_ GYRE_GUARDED_BY(mutex_);
  uint64_t streams_ GYRE_GUARDED_BY(mutex_) = 0;
};

// Workers' streams (workers.cc).
std::unique_ptr<grpc::Service> MakeClusterService(const GrpcServerOptions& options, const Model& model,
                                                  Cluster& cluster, AttachedWorkers& attached);

// Streams of workers that draft (drafts.cc).
std::unique_ptr<grpc::Service> MakeDraftsService(const GrpcServerOptions& options, const Model& model);

}  // namespace gyre
