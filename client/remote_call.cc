#include "client/remote_call.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/thread.h"
#include "proto/channel.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

// Cancels a call once `interrupted` is true, until its own end.
class Canceller {
 public:
  Canceller(grpc::ClientContext* context, const std::function<bool()>& interrupted)
      : thread_(MakeThread("canceller", [this, context, &interrupted] { Watch(context, interrupted); })) {}
  ~Canceller() {
    {
      MutexLock lock(&mutex_);
      done_ = true;
      changed_.Signal();
    }
    thread_.join();
  }

 private:
  void Watch(grpc::ClientContext* context, const std::function<bool()>& interrupted) {
    while (!interrupted()) {
      MutexLock lock(&mutex_);
      if (!done_) changed_.WaitUntil(&mutex_, After(milliseconds(20)));
      if (done_) return;
    }
    context->TryCancel();
  }

  Mutex mutex_;
  CondVar changed_;
  bool done_ GYRE_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the last one: it uses the others
};

}  // namespace

void SetDeadline(grpc::ClientContext* context, Duration d) {
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::system_clock::duration>(d));
}

CallEnd MakeCall(const std::string& address, const std::function<bool()>& interrupted, grpc::ClientContext* context,
                 const std::function<grpc::Status()>& call) {
  grpc::Status status;
  {
    const Canceller canceller(context, interrupted);
    status = call();
  }
  CallEnd end{.status = FromGrpcAt(status, address), .leader = {}};
  if (absl::IsCancelled(end.status) && interrupted()) end.status = StoppedAt(address);
  if (!absl::IsUnavailable(end.status)) return end;
  LeaderAnswer answer = ReadLeader(*context);
  end.stands_by = answer.stands_by;
  end.leader = std::move(answer.leader);
  end.absent = status.error_message().rfind("failed to connect", 0) == 0 ||
               status.error_message().rfind("DNS resolution failed", 0) == 0;
  return end;
}

Status StoppedAt(const std::string& address) {
  return absl::CancelledError(fmt::format("stopped while {} had not answered", address));
}

Status AskLeader(Coordinators* coordinators, const ClusterAddress& cluster,
                 const std::function<grpc::Status(const std::shared_ptr<grpc::Channel>& channel,
                                                  grpc::ClientContext* context)>& call,
                 Duration timeout) {
  const Deadline give_up = After(coordinators->several() ? timeout : Duration{});
  for (;;) {
    const std::string at = coordinators->current();
    GYRE_ASSIGN_OR_RETURN(const auto channel,
                          MakeChannel(at, {.impatient = coordinators->several(), .identity = cluster.identity}));
    grpc::ClientContext context;
    const CallEnd end = MakeCall(at, cluster.interrupted, &context, [&] { return call(channel, &context); });
    if (!end.stands_by && !end.absent) {
      coordinators->Found();
      return end.status;
    }
    if (cluster.interrupted()) return StoppedAt(at);
    if (coordinators->Next(end.leader)) continue;
    if (Clock::now() < give_up) {
      std::this_thread::sleep_for(milliseconds(200));
      continue;
    }
    return coordinators->several() ? Annotate(end.status, "no coordinator leads at " + cluster.address) : end.status;
  }
}

}  // namespace gyre
