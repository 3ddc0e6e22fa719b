// The services behind the door. For door*.cc only.
#pragma once

#include <memory>
#include <set>

#include "base/mutex.h"
#include "coordinator/door.h"

namespace grpc {
class Service;
}

namespace gyre {

// Clients' requests (door_clients.cc).
std::unique_ptr<grpc::Service> MakeInferenceService(const DoorOptions& options, const Model& model, Engine& engine);

class AttachReactor;

// The attached workers, so that silent ones are found.
class Attached {
 public:
  void Add(AttachReactor* r) {
    MutexLock lock(&mutex_);
    all_.insert(r);
  }
  void Remove(AttachReactor* r) {
    MutexLock lock(&mutex_);
    all_.erase(r);
  }
  // `held`: for how long this process could not listen since the last call.
  void Check(Duration timeout, Duration held);
  void CancelAll();

 private:
  Mutex mutex_;
  std::set<AttachReactor*> all_ GYRE_GUARDED_BY(mutex_);
};

// Workers' streams (door_workers.cc).
std::unique_ptr<grpc::Service> MakeClusterService(const DoorOptions& options, const Model& model, Cluster& cluster,
                                                  Attached& attached);

}  // namespace gyre
