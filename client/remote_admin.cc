#include <grpcpp/grpcpp.h>

#include <chrono>

#include "client/remote.h"
#include "client/remote_call.h"
#include "gyre/v1/admin.grpc.pb.h"

namespace gyre {
namespace {

// Makes one call of the administration without a deadline, as the time that a change takes has no limit.
template <typename Request>
StatusOr<v1::ChangeReply> AskChange(const ClusterAddress& cluster, const Request& request,
                                    grpc::Status (v1::Admin::Stub::*call)(grpc::ClientContext*, const Request&,
                                                                          v1::ChangeReply*)) {
  GYRE_ASSIGN_OR_RETURN(Coordinators coordinators, Coordinators::Parse(cluster.address));
  v1::ChangeReply reply;
  const Status status = AskLeader(&coordinators, cluster, [&](const auto& channel, grpc::ClientContext* context) {
    const auto stub = v1::Admin::NewStub(channel);
    return ((*stub).*call)(context, request, &reply);
  });
  if (absl::IsCancelled(status)) return absl::CancelledError(Message(status) + "; the change may still be made");
  GYRE_RETURN_IF_ERROR(status);
  return reply;
}

v1::DrainRequest DrainOf(const std::string& worker, bool dry_run) {
  v1::DrainRequest request;
  request.set_worker(worker);
  request.set_dry_run(dry_run);
  return request;
}

}  // namespace

StatusOr<v1::StatusReply> FetchStatus(const ClusterAddress& cluster) {
  GYRE_ASSIGN_OR_RETURN(Coordinators coordinators, Coordinators::Parse(cluster.address));
  v1::StatusReply reply;
  GYRE_RETURN_IF_ERROR(AskLeader(&coordinators, cluster, [&](const auto& channel, grpc::ClientContext* context) {
    SetDeadline(context, std::chrono::seconds(5));
    return v1::Admin::NewStub(channel)->Status(context, {}, &reply);
  }));
  return reply;
}

StatusOr<v1::ChangeReply> AskResize(const ClusterAddress& cluster, const std::string& ranges, bool dry_run) {
  v1::ResizeRequest request;
  request.set_ranges(ranges);
  request.set_dry_run(dry_run);
  return AskChange(cluster, request, &v1::Admin::Stub::Resize);
}

StatusOr<v1::ChangeReply> AskKvTokens(const ClusterAddress& cluster, uint64_t tokens, bool dry_run) {
  v1::ResizeRequest request;
  request.set_kv_tokens(tokens);
  request.set_dry_run(dry_run);
  return AskChange(cluster, request, &v1::Admin::Stub::Resize);
}

StatusOr<v1::ChangeReply> AskProposed(const ClusterAddress& cluster, bool dry_run) {
  v1::ResizeRequest request;
  request.set_proposed(true);
  request.set_dry_run(dry_run);
  return AskChange(cluster, request, &v1::Admin::Stub::Resize);
}

StatusOr<v1::ChangeReply> AskDrain(const ClusterAddress& cluster, const std::string& worker, bool dry_run) {
  return AskChange(cluster, DrainOf(worker, dry_run), &v1::Admin::Stub::Drain);
}

StatusOr<v1::ChangeReply> AskUndrain(const ClusterAddress& cluster, const std::string& worker) {
  return AskChange(cluster, DrainOf(worker, false), &v1::Admin::Stub::Undrain);
}

StatusOr<v1::ChangeReply> AskRemove(const ClusterAddress& cluster, const std::string& worker) {
  return AskChange(cluster, DrainOf(worker, false), &v1::Admin::Stub::Remove);
}

}  // namespace gyre
