// A worker's first certificate: it gets it with a token, from a coordinator that the token's CA vouches for.
#pragma once

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "identity/identity.h"
#include "identity/join_token.h"

namespace gyre {

// The files of a new identity of worker `name`, whose private key was made here. Nothing of the token leaves before the
// coordinator at `address` (HOST:PORT) has proved itself. kUnavailable, kDeadlineExceeded: nobody answers there;
// kFailedPrecondition: it is another one than the token's, or it refuses; kCancelled: `stopped` said so.
StatusOr<Identity::Files> JoinWithToken(const std::string& address, const JoinToken& token, const std::string& name,
                                        Deadline deadline, const std::function<bool()>& stopped = {});

}  // namespace gyre
