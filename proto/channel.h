// The only function that makes a gRPC channel to a coordinator.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "identity/identity.h"

namespace gyre {

// The shortest time in milliseconds between two pings of a channel that a coordinator accepts.
inline constexpr int kShortestPing = 2000;

struct ChannelOptions {
  // The channel has its own connection, which is tried at once; otherwise channels to one address share a connection
  // and its backoff.
  bool own_connection = false;
  bool keepalive = false;                    // pings find a dead host while a stream is silent
  bool impatient = false;                    // there are other addresses: one without an answer is given up soon
  std::shared_ptr<const Identity> identity;  // for TLS; null = without
};

// gRPC ends the process where it gets no thread or no memory, so this comes before its first use in a process.
// kResourceExhausted: there is too little.
Status CheckGrpcRoom();

// `address`: HOST:PORT. Returns at once: the first call connects. kInvalidArgument: not an address. Errors as
// CheckGrpcRoom.
StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address, const ChannelOptions& options = {});

// Why a first call did not reach the coordinator, as the text after "the coordinator at ADDRESS: ": one of both ends
// lacks TLS or trusts another CA; otherwise gRPC's own words.
std::string WhyNotReached(const grpc::Status& status);

// Whether a server of another protocol is at the address, so that waiting is of no use.
bool SpeaksNoGrpc(const grpc::Status& status);

// A call's outcome. If the coordinator at `address` could not be reached, went away or ended the call, the sentence
// says so, in place of gRPC's own words. The caller explains a call that this side cancelled.
Status FromGrpcAt(const grpc::Status& status, const std::string& address);

}  // namespace gyre
