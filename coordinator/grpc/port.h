// A port with a gRPC server behind it: its listener, TLS, joins with tokens, and the limits on unauthenticated peers.
#pragma once

#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "identity/identity.h"

namespace gyre {

struct GrpcPortOptions {
  std::string address;  // HOST:PORT, port 0 for any
  Duration hello_timeout = std::chrono::seconds(5);
  Duration idle_timeout = std::chrono::minutes(2);
  std::shared_ptr<IdentityFolder> identity;  // null: no TLS
  std::string cluster_ca;                    // the CA's folder, for joins with tokens; "" = none
};

class GrpcPort {
 public:
  // Serves what `add` registers, which outlives the port. Errors as GrpcServer::Open.
  static StatusOr<std::unique_ptr<GrpcPort>> Open(const GrpcPortOptions& options,
                                                  const std::function<void(grpc::ServerBuilder&)>& add);
  virtual ~GrpcPort() = default;
  // HOST:PORT as bound.
  virtual const std::string& address() const = 0;
  // Takes over what the identity's folder has by now. True: it is another one than before.
  virtual bool UpdateIdentity() = 0;
  // Closes the port, calls `end_calls`, and ends the calls that are left soon after. Idempotent.
  virtual void Stop(const std::function<void()>& end_calls = {}) = 0;
};

}  // namespace gyre
