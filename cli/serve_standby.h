// `gyre serve --standby`: the wait for the lead, and the end of a leader (docs/restart.md).
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "cli/commands.h"
#include "coordinator/grpc/standby_server.h"
#include "coordinator/state/election.h"
#include "coordinator/state/state_store.h"
#include "identity/identity.h"

namespace gyre {

class HttpFront;

class Standby {
 public:
  // Usage errors: --standby and its files, the lease.
  static Status Check(const ServeCommandOptions& options);
  // Stands by: opens the gRPC port of `serve`, and from now on tries to lead. `front` is told who leads; null: none.
  static StatusOr<std::unique_ptr<Standby>> Open(const ServeCommandOptions& options, const ServeOptions& serve,
                                                 HttpFront* front);
  // HOST:PORT as bound.
  const std::string& address() const { return server_->address(); }
  // Waits until this process leads. Calls are refused until StopRefusing.
  Status WaitToLead();
  // The state of the process that leads.
  StatusOr<std::unique_ptr<StateStore>> OpenState(StoredState* found);
  // Closes the port, so that the server of a leader may open it.
  void StopRefusing() { server_ = nullptr; }

 private:
  Standby() = default;
  void Tell(const std::string& leader);

  EtcdOptions etcd_;
  std::string own_;
  bool quiet_ = false;
  HttpFront* front_ = nullptr;
  std::shared_ptr<IdentityFolder> identity_;
  std::unique_ptr<StandbyServer> server_;
  std::unique_ptr<Election> election_;
  Election::Reign reign_;
};

}  // namespace gyre
