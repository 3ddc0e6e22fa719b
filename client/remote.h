// The other end of the coordinator's gRPC: what operators ask, and the remote Target. Each call connects anew and fails
// within seconds when no coordinator answers (kUnavailable).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "client/target.h"
#include "gyre/v1/admin.pb.h"
#include "identity/identity.h"

namespace gyre {

// Where a coordinator is, and as whom it is asked.
struct ClusterAddress {
  ClusterAddress() = default;
  ClusterAddress(std::string host_port, std::shared_ptr<const Identity> self = nullptr)
      : address(std::move(host_port)), identity(std::move(self)) {}
  std::string address;                       // HOST:PORT; or of all coordinators that may lead, with commas
  std::shared_ptr<const Identity> identity;  // for TLS; null = without
  // So long a target that has lost its coordinator looks for it, and goes on with its request where it was
  // (docs/restart.md). 0: it fails at once.
  Duration reconnect{};
};

StatusOr<std::unique_ptr<Target>> OpenRemote(const ClusterAddress& cluster);
StatusOr<v1::StatusReply> FetchStatus(const ClusterAddress& cluster);
// dry_run: what it would do, or why it is refused.
StatusOr<v1::ChangeReply> AskResize(const ClusterAddress& cluster, const std::string& ranges, bool dry_run = false);
// A resize to the plan that is proposed.
StatusOr<v1::ChangeReply> AskProposed(const ClusterAddress& cluster, bool dry_run = false);
StatusOr<v1::ChangeReply> AskDrain(const ClusterAddress& cluster, const std::string& worker, bool dry_run = false);
StatusOr<v1::ChangeReply> AskUndrain(const ClusterAddress& cluster, const std::string& worker);
StatusOr<v1::ChangeReply> AskRemove(const ClusterAddress& cluster, const std::string& worker);

}  // namespace gyre
