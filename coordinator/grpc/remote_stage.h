// StageControl over the Attach stream: commands down, events up. The stream may end and another one take its place.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/stage_control.h"
#include "coordinator/grpc/clock_offset.h"
#include "proto/control_codec.h"

namespace gyre {

// Thread-safe. The stream's side hands events in and takes commands out.
class RemoteStage : public StageControl {
 public:
  explicit RemoteStage(std::string name) : name_(std::move(name)) {}

  const std::string& name() const override { return name_; }
  void SetEventSink(EventSink sink) override;
  void Apply(const Change& change) override;
  void Trace(Deadline asked) override;
  void SendRevoked(const std::string& crl);  // PEM
  void Dismiss() override;
  void Probe(const std::vector<WeightSource>& peers) override;

  // From the stream's side.
  struct Stream {
    // Hands one command to the stream, which calls Written when it may have the next. Must not block.
    std::function<void(std::shared_ptr<const v1::Command>)> write;
    // The membership has ended: nobody listens to this stream any more. Must not block.
    std::function<void()> hang_up;
  };
  // `stream` is another number for each stream; the calls of an older one count no more. The welcome goes first;
  // commands that were given before follow it.
  void Open(uint64_t stream, Stream calls, Welcome welcome);
  // The same for a stream that takes the place of one before. `received`: the number of the last command that came;
  // those after it are written again. False: the membership has ended, or what came last is not known any more.
  bool Reopen(uint64_t stream, Stream calls, Welcome welcome, uint64_t received);
  void Written(uint64_t stream);
  void Close(uint64_t stream);
  // No other stream has taken the place of this one.
  bool Serves(uint64_t stream);
  bool ended() const { return ended_; }
  // `number`: of the event in this membership; one that came before is dropped. 0: it has none.
  void OnEvent(StageEvent event, uint64_t number);

 private:
  struct Numbered {
    uint64_t number = 0;
    std::shared_ptr<const v1::Command> command;
  };
  void Translate(StageTrace* trace);
  void Send(WorkerCommand command);
  void Begin(uint64_t stream, Stream calls, const Welcome& welcome) GYRE_REQUIRES(mutex_);
  void WriteNext() GYRE_REQUIRES(mutex_);

  const std::string name_;
  Mutex mutex_;
  EventSink sink_ GYRE_GUARDED_BY(mutex_);
  std::atomic<bool> ended_{false};  // the membership
  uint64_t stream_ GYRE_GUARDED_BY(mutex_) = 0;
  Stream calls_ GYRE_GUARDED_BY(mutex_);
  bool writing_ GYRE_GUARDED_BY(mutex_) = false;
  ClockOffset clock_ GYRE_GUARDED_BY(mutex_);
  std::deque<Numbered> commands_ GYRE_GUARDED_BY(mutex_);  // the last ones that were written, then those to be
  size_t written_ GYRE_GUARDED_BY(mutex_) = 0;             // of commands_
  uint64_t last_command_ GYRE_GUARDED_BY(mutex_) = 0;      // number
  uint64_t last_event_ GYRE_GUARDED_BY(mutex_) = 0;        // number
};

}  // namespace gyre
