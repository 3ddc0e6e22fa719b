// StageControl over the Attach stream: commands down, events up.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/stage_control.h"
#include "coordinator/clock_offset.h"
#include "proto/control_codec.h"

namespace gyre {

// Thread-safe. The stream's side hands events in and takes commands out.
class RemoteStage : public StageControl {
 public:
  explicit RemoteStage(std::string name) : name_(std::move(name)) {}

  const std::string& name() const override { return name_; }
  void SetEventSink(EventSink sink) override;
  void Prepare(const PrepareRequest& request) override;
  void Move(Epoch epoch, const std::vector<BlockId>& blocks) override;
  void Commit(Epoch epoch) override;
  void Release(Epoch epoch) override;
  void Abort(Epoch epoch) override;
  void Trace(Deadline asked) override;
  void SendRevoked(const std::string& crl);  // PEM

  // From the stream's side. `write` hands one command to the stream, which calls Written when it may have the next; it
  // never blocks. `welcome` goes first; commands that were given before Open follow it.
  void Open(std::function<void(const v1::Command*)> write, const Welcome& welcome);
  void Written();
  void Close();
  void OnEvent(StageEvent event);

 private:
  void Translate(StageTrace* trace);
  void Send(const WorkerCommand& command);

  const std::string name_;
  Mutex mutex_;
  EventSink sink_ GYRE_GUARDED_BY(mutex_);
  std::function<void(const v1::Command*)> write_ GYRE_GUARDED_BY(mutex_);
  bool closed_ GYRE_GUARDED_BY(mutex_) = false;
  ClockOffset clock_ GYRE_GUARDED_BY(mutex_);
  std::deque<v1::Command> commands_ GYRE_GUARDED_BY(mutex_);  // once open the first is being written
};

}  // namespace gyre
