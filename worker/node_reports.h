// What an attached worker tells its coordinator without being asked: the events of its stage, its load every 250 ms,
// and once that it wants to leave. A thread of its own writes them: a worker that computes or loads is not dead.
#pragma once

#include <grpcpp/support/sync_stream.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "gyre/v1/cluster.pb.h"
#include "weights/room_watch.h"
#include "worker/event_outbox.h"
#include "worker/worker.h"

namespace gyre {

class NodeReports {
 public:
  using Stream = grpc::ClientReaderWriter<v1::WorkerEvent, v1::Command>;
  // The reports read these on their threads. They outlive the reports.
  struct Sources {
    EventOutbox& events;
    Worker& worker;
    std::function<uint64_t()> room;  // for fetched weights on the disk, where the call may hang; empty: none are
    std::function<bool()> leaves;    // whether the worker wants to leave
    std::function<void(const std::string&)> say;
  };
  // Writes from now on. Nobody else writes to the stream, which outlives this.
  NodeReports(Stream& stream, Sources sources);
  ~NodeReports() { Stop(); }
  NodeReports(const NodeReports&) = delete;
  NodeReports& operator=(const NodeReports&) = delete;
  // Waits for a write that is under way; it ends when the call does.
  void Stop();

 private:
  void Run();

  Stream& stream_;
  const Sources sources_;
  std::atomic<bool> stopping_{false};
  std::optional<RoomWatch> room_;
  std::thread thread_;
};

}  // namespace gyre
