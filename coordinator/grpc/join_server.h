// Workers that join with a token: connections that the listener hands over, one message each way inside TLS
// (docs/security.md). Nobody else without a certificate gets beyond a handshake.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "identity/authority.h"
#include "identity/identity.h"
#include "transport/admission.h"

namespace gyre {

struct JoinServerOptions {
  std::shared_ptr<IdentityFolder> identity;               // the coordinator's
  std::string authority;                                  // folder of the CA
  AdmissionLimits limits{.total = 16, .per_address = 4};  // above, the oldest one ends
  Duration timeout = std::chrono::seconds(10);            // for all that a connection says and hears
};

class JoinServer {
 public:
  // kNotFound, kInvalidArgument: no CA, or not the one of the identity. kResourceExhausted.
  static StatusOr<std::unique_ptr<JoinServer>> Start(const JoinServerOptions& options);
  // Joins the thread and ends what is open.
  virtual ~JoinServer() = default;
  // Owns the non-blocking socket; a handshake of TLS is what comes next on it. `host` is the peer's address,
  // `peer` with its port. Any thread.
  virtual void Take(int socket, const std::string& host, const std::string& peer) = 0;
};

}  // namespace gyre
