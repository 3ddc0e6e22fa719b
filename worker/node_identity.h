// The certificate of a worker's process: the name that it gives, and while it is attached which ones are revoked, and a
// new one in time (docs/security.md).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "identity/identity.h"

namespace gyre {

class NodeIdentity {
 public:
  // folder: null = without TLS, and nothing is done. coordinator: its address, for messages.
  NodeIdentity(std::shared_ptr<IdentityFolder> folder, std::string coordinator)
      : folder_(std::move(folder)), coordinator_(std::move(coordinator)) {}

  // Null: without TLS. Any thread.
  std::shared_ptr<const Identity> current() const { return folder_ != nullptr ? folder_->current() : nullptr; }
  // The name of the process's worker: its identity's, else `wanted`, else the host's. kFailedPrecondition: the identity
  // is no worker's, or another one's than the `wanted`.
  StatusOr<std::string> WorkerName(const std::string& wanted) const;
  // Takes a list that the coordinator sent, in PEM. Errors are logged. Any thread.
  void TakeRevoked(const std::string& crl);
  // Asks for a new certificate, once an hour, while the own one is in the last third of its life. Errors are logged.
  // One thread at a time.
  void RenewIfDue(v1::Cluster::Stub& stub);

 private:
  Status Renew(v1::Cluster::Stub& stub);

  const std::shared_ptr<IdentityFolder> folder_;
  const std::string coordinator_;
  Deadline next_renewal_ = Deadline::min();
};

}  // namespace gyre
