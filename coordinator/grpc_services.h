// The services behind the gRPC port. For grpc_*.cc only.
#pragma once

#include <memory>
#include <set>

#include "base/mutex.h"
#include "coordinator/grpc_server.h"

namespace grpc {
class Service;
}

namespace gyre {

// Clients' requests (grpc_clients.cc).
std::unique_ptr<grpc::Service> MakeInferenceService(const GrpcServerOptions& options, const Model& model,
                                                    Service& service);

class AttachReactor;

// The attached workers, so that silent ones are found. Thread-safe.
class AttachedWorkers {
 public:
  void Add(AttachReactor* r) {
    MutexLock lock(&mutex_);
    all_.insert(r);
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
};

// Workers' streams (grpc_workers.cc).
std::unique_ptr<grpc::Service> MakeClusterService(const GrpcServerOptions& options, const Model& model,
                                                  Cluster& cluster, AttachedWorkers& attached);

}  // namespace gyre
