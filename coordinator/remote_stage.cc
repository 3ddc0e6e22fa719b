#include "coordinator/remote_stage.h"

#include <utility>

namespace gyre {

void RemoteStage::SetEventSink(EventSink sink) {
  MutexLock lock(&mutex_);
  sink_ = std::move(sink);
}

void RemoteStage::Prepare(const PrepareRequest& request) { Send({request.plan.epoch, request}); }
void RemoteStage::Move(Epoch epoch, const std::vector<BlockId>& blocks) { Send({epoch, MoveCommand{blocks}}); }
void RemoteStage::Commit(Epoch epoch) { Send({epoch, CommitCommand{}}); }
void RemoteStage::Release(Epoch epoch) { Send({epoch, ReleaseCommand{}}); }
void RemoteStage::Abort(Epoch epoch) { Send({epoch, AbortCommand{}}); }

void RemoteStage::Trace(Deadline asked) { Send({{}, TraceCommand{asked}}); }

void RemoteStage::SendRevoked(const std::string& crl) { Send({{}, RevokedCommand{crl}}); }

void RemoteStage::Open(std::function<void(const v1::Command*)> write, const Welcome& welcome) {
  MutexLock lock(&mutex_);
  if (closed_) return;
  write_ = std::move(write);
  commands_.push_front(Encode(WorkerCommand{{}, welcome}));
  write_(&commands_.front());
}

void RemoteStage::Send(const WorkerCommand& command) {
  v1::Command message = Encode(command);
  MutexLock lock(&mutex_);
  if (closed_) return;
  commands_.push_back(std::move(message));
  if (write_ && commands_.size() == 1) write_(&commands_.front());
}

void RemoteStage::Written() {
  MutexLock lock(&mutex_);
  if (!commands_.empty()) commands_.pop_front();
  if (write_ && !commands_.empty()) write_(&commands_.front());
}

void RemoteStage::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  write_ = {};
}

// Its times into those of this machine's clock.
void RemoteStage::Translate(StageTrace* trace) {
  MutexLock lock(&mutex_);
  clock_.Add(trace->asked, trace->answered, Clock::now());
  for (StageSpan& s : trace->spans) s.began -= clock_.offset();
  trace->clock_error = clock_.error();
}

void RemoteStage::OnEvent(StageEvent event) {
  event.worker = name_;
  if (auto* trace = std::get_if<StageTrace>(&event.what)) Translate(trace);
  EventSink sink;
  {
    MutexLock lock(&mutex_);
    sink = sink_;
  }
  if (sink) sink(std::move(event));
}

}  // namespace gyre
