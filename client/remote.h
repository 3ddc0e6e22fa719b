// The other end of the coordinator's gRPC: what operators ask, and the remote Target. Each call connects anew and fails
// within seconds when no coordinator answers (kUnavailable).
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "client/target.h"
#include "gyre/v1/admin.pb.h"

namespace gyre {

// `cluster` is HOST:PORT everywhere.
StatusOr<std::unique_ptr<Target>> OpenRemote(const std::string& cluster);
StatusOr<v1::StatusReply> FetchStatus(const std::string& cluster);
// dry_run: what it would do, or why it is refused.
StatusOr<v1::ChangeReply> AskResize(const std::string& cluster, const std::string& ranges, bool dry_run = false);
StatusOr<v1::ChangeReply> AskDrain(const std::string& cluster, const std::string& worker, bool dry_run = false);
StatusOr<v1::ChangeReply> AskUndrain(const std::string& cluster, const std::string& worker);
StatusOr<v1::ChangeReply> AskRemove(const std::string& cluster, const std::string& worker);

}  // namespace gyre
