// gRPC over TLS between holders of identities: certificates at both ends, and the services that each role may call
// (docs/security.md).
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "identity/identity.h"

namespace gyre {

// Credentials of a client. They accept only a coordinator of the client's own cluster. kInternal: gRPC refused the
// credentials.
StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientCredentials(const std::shared_ptr<const Identity>& identity);

// Credentials of a server that follow changes of its identity. Each call is checked: the caller's certificate
// against the newest list of revoked ones, and its role against the service.
class ServerIdentity {
 public:
  // kResourceExhausted: no descriptor is left.
  static StatusOr<std::unique_ptr<ServerIdentity>> Make(std::shared_ptr<IdentityFolder> folder);
  virtual ~ServerIdentity() = default;
  virtual std::shared_ptr<grpc::ServerCredentials> credentials() = 0;
  // Takes the folder's present identity. True: it differs from the one before.
  virtual bool Update() = 0;
};

// The roles that may call a method, as "/gyre.v1.Admin/Status".
bool MayCall(Role role, const std::string& method);

// The caller; nullopt: the connection has no TLS. `context` is the call's.
std::optional<Principal> CallerOf(const grpc::AuthContext& context);
// Like CallerOf, if the certificate is still accepted.
StatusOr<Principal> CheckCaller(const grpc::AuthContext& context, const Identity& identity);

}  // namespace gyre
