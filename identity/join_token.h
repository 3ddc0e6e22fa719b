// Tokens with which a worker gets its first certificate (docs/security.md). The CA's folder has the hash of each. If
// several workers use one token at once, the file system decides which of them gets it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "identity/authority.h"

namespace gyre {

struct JoinToken {
  std::string id;           // 8 bytes
  std::string secret;       // 32 bytes
  std::string fingerprint;  // SHA-256 of the CA's certificate
};

std::string FormatToken(const JoinToken& token);
// The message does not repeat the text, which is a secret. kInvalidArgument.
StatusOr<JoinToken> ParseToken(const std::string& text);

inline constexpr std::chrono::seconds kLongestToken = std::chrono::hours(24 * 30);

// `name`: the only name that the token is for; "" = any free one. kInvalidArgument: the name, or the time is not within
// kLongestToken.
StatusOr<JoinToken> CreateToken(const Authority& authority, std::chrono::seconds valid, const std::string& name);

// The request that is sent with a token.
struct JoinRequest {
  std::string id, secret, name;
  std::string request;  // PKCS #10, DER
};
// Issues the certificate, one for each token; the owner of its key may ask for it again. `now`: seconds since 1970.
// kInvalidArgument: the request, or a token that is unknown, wrong, expired or used (the message does not say which);
// kFailedPrecondition: the name is taken or not the token's; then the token stays unused.
StatusOr<X509Ptr> Redeem(Authority& authority, const JoinRequest& request, int64_t now);

}  // namespace gyre
