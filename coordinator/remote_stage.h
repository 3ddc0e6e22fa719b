// StageControl over the Attach stream: commands down, events up.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "base/mutex.h"
#include "base/stage_control.h"
#include "gyre/v1/cluster.pb.h"

namespace gyre {

// Thread-safe. The stream's side feeds it events and takes its commands.
class RemoteStage : public StageControl {
 public:
  // `write`: hands one command to the stream, which calls Written when it may have the next; never blocks.
  explicit RemoteStage(std::string name) : name_(std::move(name)) {}

  const std::string& name() const override { return name_; }
  void SetEventSink(EventSink sink) override;
  void Prepare(const PrepareRequest& request) override;
  void Move(Epoch epoch, const std::vector<BlockId>& blocks) override;
  void Commit(Epoch epoch) override;
  void Release(Epoch epoch) override;
  void Abort(Epoch epoch) override;

  // From the stream's side.
  void Open(std::function<void(const v1::Command*)> write);
  void Send(v1::Command command);
  void Written();
  void Close();
  void OnEvent(const v1::WorkerEvent& event);

 private:
  const std::string name_;
  Mutex mutex_;
  EventSink sink_ GYRE_GUARDED_BY(mutex_);
  std::function<void(const v1::Command*)> write_ GYRE_GUARDED_BY(mutex_);
  std::deque<v1::Command> commands_ GYRE_GUARDED_BY(mutex_);  // the first is being written
};

}  // namespace gyre
