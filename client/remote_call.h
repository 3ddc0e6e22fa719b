// One gRPC call to a coordinator: its outcome, its end when the user stops it, and which of several coordinators gets
// it. Thread-safe, but for the coordinators that are handed over.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "client/remote.h"
#include "proto/coordinators.h"

namespace gyre {

// The outcome of a call to one coordinator.
struct CallEnd {
  Status status;
  bool stands_by = false;  // it is not the one that leads
  bool absent = false;     // it could not be reached
  std::string leader;      // whom it named
};

void SetDeadline(grpc::ClientContext* context, Duration d);

// Makes the call to the coordinator at `address`. Once `interrupted` is true, the call is cancelled, and its status is
// StoppedAt. The context is the call's.
CallEnd MakeCall(const std::string& address, const std::function<bool()>& interrupted, grpc::ClientContext* context,
                 const std::function<grpc::Status()>& call);
// kCancelled: the user stopped waiting for this coordinator.
Status StoppedAt(const std::string& address);

// Makes a call to the leading coordinator: each is asked until one neither stands by nor is absent. Afterwards
// `coordinators` is at the one that answered. If there are several, one of them may be about to lead. A call that may
// be made at any time can wait, so it waits for `timeout`.
Status AskLeader(Coordinators* coordinators, const ClusterAddress& cluster,
                 const std::function<grpc::Status(const std::shared_ptr<grpc::Channel>& channel,
                                                  grpc::ClientContext* context)>& call,
                 Duration timeout = {});

}  // namespace gyre
