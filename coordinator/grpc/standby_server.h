// The gRPC port of a coordinator that stands by: every call is answered with the name of the one that leads.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "coordinator/grpc/port.h"

namespace gyre {

class StandbyServer {
 public:
  // Errors as GrpcServer::Open.
  static StatusOr<std::unique_ptr<StandbyServer>> Open(const GrpcPortOptions& options);
  virtual ~StandbyServer() = default;
  // HOST:PORT as bound.
  virtual const std::string& address() const = 0;
  // "" = no leader is known. Any thread.
  virtual void SetLeader(const std::string& address) = 0;
  // Takes the present files of the identity's folder.
  virtual void UpdateIdentity() = 0;
};

// The text for clients of a coordinator that stands by.
std::string StandbyText(const std::string& leader);

}  // namespace gyre
