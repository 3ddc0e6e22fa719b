// gyre status, layers, resize, drain, undrain, remove: calls to a coordinator.
#include <boost/json.hpp>
#include <cstdio>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/message_json.h"
#include "cli/tables.h"
#include "client/remote.h"
#include "fmt/core.h"

namespace gyre {
namespace {

// One line of JSON with the fields of proto/gyre/v1/admin.proto. Every number is a JSON number, whatever its size.
Status PrintJson(const google::protobuf::Message& message) {
  fmt::print("{}\n", boost::json::serialize(MessageToJson(message)));
  return absl::OkStatus();
}

}  // namespace

Status StatusCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const ClusterAddress cluster, ClusterOf(options.cluster, options.identity));
  GYRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, FetchStatus(cluster));
  if (options.json) return PrintJson(reply);
  fmt::print("{}", FormatStatus(reply));
  return absl::OkStatus();
}

Status LayersCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const ClusterAddress cluster, ClusterOf(options.cluster, options.identity));
  GYRE_ASSIGN_OR_RETURN(const v1::StatusReply reply, FetchStatus(cluster));
  if (options.json) return PrintJson(reply);
  fmt::print("{}", FormatLayers(reply));
  if (options.why) fmt::print("{}", FormatReasons(reply));
  if (!reply.has_epoch()) fmt::print("{}\n", reply.state());
  return absl::OkStatus();
}

namespace {

Status PrintChange(const AdminOptions& options, const StatusOr<v1::ChangeReply>& reply) {
  GYRE_RETURN_IF_ERROR(reply.status());
  if (options.json) return PrintJson(*reply);
  fmt::print("{}", options.dry_run ? FormatPreview(*reply) : FormatChange(*reply));
  return absl::OkStatus();
}

}  // namespace

Status ResizeCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const ClusterAddress cluster, ClusterOf(options.cluster, options.identity));
  if (options.kv_tokens != 0) return PrintChange(options, AskKvTokens(cluster, options.kv_tokens, options.dry_run));
  if (options.proposed) return PrintChange(options, AskProposed(cluster, options.dry_run));
  StatusOr<v1::ChangeReply> reply = AskResize(cluster, options.what, options.dry_run);
  if (absl::IsInvalidArgument(reply.status())) return AsUsage(Annotate(reply.status(), "RANGES"));
  return PrintChange(options, reply);
}

Status DrainCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const ClusterAddress cluster, ClusterOf(options.cluster, options.identity));
  return PrintChange(options, AskDrain(cluster, options.what, options.dry_run));
}

Status UndrainCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const ClusterAddress cluster, ClusterOf(options.cluster, options.identity));
  GYRE_ASSIGN_OR_RETURN(const v1::ChangeReply reply, AskUndrain(cluster, options.what));
  if (options.json) return PrintJson(reply);
  fmt::print("{} may have layers again\n", options.what);
  return absl::OkStatus();
}

Status RemoveCommand(const AdminOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const ClusterAddress cluster, ClusterOf(options.cluster, options.identity));
  return PrintChange(options, AskRemove(cluster, options.what));
}

}  // namespace gyre
