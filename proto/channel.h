// The one way to reach a coordinator over gRPC.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "identity/identity.h"

namespace gyre {

// Milliseconds between two pings of a channel that a coordinator takes at least.
inline constexpr int kShortestPing = 2000;

struct ChannelOptions {
  // A connection of its own that is tried at once; channels to one address otherwise share a connection and its
  // backoff.
  bool own_connection = false;
  bool keepalive = false;                    // pings find a dead host while a stream is silent
  bool impatient = false;                    // there are other addresses: one without an answer is given up soon
  std::shared_ptr<const Identity> identity;  // for TLS; null = without
};

// `address`: HOST:PORT. Returns at once: the first call connects. kInvalidArgument: not an address.
StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address, const ChannelOptions& options = {});

// Why a first call did not reach the coordinator, to stand behind "the coordinator at ADDRESS: ": that one of both ends
// lacks TLS or trusts another CA, or else gRPC's own words.
std::string WhyNotReached(const grpc::Status& status);

// A call's outcome. Where the coordinator at `address` could not be reached, went away or ended the call, the sentence
// says that, in place of gRPC's own words. A call that this side cancelled is the caller's to explain.
Status FromGrpcAt(const grpc::Status& status, const std::string& address);

}  // namespace gyre
