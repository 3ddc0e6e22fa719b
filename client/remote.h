// A client of the coordinator's gRPC services: operators' calls, and the remote Target. Each call connects anew, and
// fails within seconds when no coordinator answers (kUnavailable). remote.cc has the Target, remote_admin.cc the
// operators' calls.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "client/target.h"
#include "gyre/v1/admin.pb.h"
#include "identity/identity.h"

namespace gyre {

// The address of a coordinator, and the identity of the client.
struct ClusterAddress {
  ClusterAddress() = default;
  ClusterAddress(std::string host_port, std::shared_ptr<const Identity> self = nullptr)
      : address(std::move(host_port)), identity(std::move(self)) {}
  std::string address;                       // HOST:PORT; or of all coordinators that may lead, with commas
  std::shared_ptr<const Identity> identity;  // for TLS; null = without
  // The time for which a target that has lost its coordinator looks for it, to continue its request where it was
  // (docs/restart.md). 0: it fails at once.
  Duration reconnect{};
  // Asked every 20 ms during a call, on any thread; once it is true, the call ends with kCancelled.
  std::function<bool()> interrupted = [] { return false; };
};

StatusOr<std::unique_ptr<Target>> OpenRemote(const ClusterAddress& cluster);
StatusOr<v1::StatusReply> FetchStatus(const ClusterAddress& cluster);
// dry_run: the reply says what the resize would do; or the error, why it is refused.
StatusOr<v1::ChangeReply> AskResize(const ClusterAddress& cluster, const std::string& ranges, bool dry_run = false);
// Another size of the KV cache.
StatusOr<v1::ChangeReply> AskKvTokens(const ClusterAddress& cluster, uint64_t tokens, bool dry_run = false);
// Resizes to the plan that the coordinator proposes.
StatusOr<v1::ChangeReply> AskProposed(const ClusterAddress& cluster, bool dry_run = false);
StatusOr<v1::ChangeReply> AskDrain(const ClusterAddress& cluster, const std::string& worker, bool dry_run = false);
StatusOr<v1::ChangeReply> AskUndrain(const ClusterAddress& cluster, const std::string& worker);
StatusOr<v1::ChangeReply> AskRemove(const ClusterAddress& cluster, const std::string& worker);

}  // namespace gyre
