#include "coordinator/grpc/remote_stage.h"

#include <utility>

namespace gyre {
namespace {

// The number of commands that are kept after they were written: far more than a connection holds on the way.
constexpr size_t kKept = 256;

}  // namespace

// An empty sink: nobody listens any more.
void RemoteStage::SetEventSink(EventSink sink) {
  MutexLock lock(&mutex_);
  const bool ends = sink_ && !sink;
  sink_ = std::move(sink);
  if (!ends) return;
  ended_ = true;
  if (calls_.hang_up) calls_.hang_up();
}

void RemoteStage::Apply(const Change& change) { Send({change}); }
void RemoteStage::Trace(Deadline asked) { Send({TraceCommand{asked}}); }
void RemoteStage::Probe(const std::vector<WeightSource>& peers) { Send({ProbeCommand{peers}}); }
void RemoteStage::Dismiss() { Send({DismissCommand{}}); }

void RemoteStage::SendRevoked(const std::string& crl) { Send({RevokedCommand{crl}}); }

void RemoteStage::Begin(uint64_t stream, Stream calls, const Welcome& welcome) {
  stream_ = stream;
  calls_ = std::move(calls);
  writing_ = true;
  calls_.write(std::make_shared<const v1::Command>(Encode(WorkerCommand{welcome})));
}

void RemoteStage::Open(uint64_t stream, Stream calls, Welcome welcome) {
  MutexLock lock(&mutex_);
  Begin(stream, std::move(calls), welcome);
}

bool RemoteStage::Reopen(uint64_t stream, Stream calls, Welcome welcome, uint64_t received) {
  MutexLock lock(&mutex_);
  const uint64_t before = last_command_ - commands_.size();  // the number of the newest that is forgotten
  if (ended_ || received < before || received > last_command_) return false;
  written_ = received - before;
  welcome.resumed = true;
  welcome.received = last_event_;
  Begin(stream, std::move(calls), welcome);
  return true;
}

void RemoteStage::Send(WorkerCommand command) {
  MutexLock lock(&mutex_);
  if (ended_) return;
  command.number = ++last_command_;
  commands_.push_back({command.number, std::make_shared<const v1::Command>(Encode(command))});
  WriteNext();
}

void RemoteStage::WriteNext() {
  if (!calls_.write || writing_ || written_ == commands_.size()) return;
  writing_ = true;
  calls_.write(commands_[written_++].command);
  if (written_ > kKept) commands_.pop_front(), --written_;
}

void RemoteStage::Written(uint64_t stream) {
  MutexLock lock(&mutex_);
  if (stream != stream_) return;
  writing_ = false;
  WriteNext();
}

void RemoteStage::Close(uint64_t stream) {
  MutexLock lock(&mutex_);
  if (stream == stream_) calls_ = {};
}

bool RemoteStage::Serves(uint64_t stream) {
  MutexLock lock(&mutex_);
  return stream == stream_;
}

// Its times into those of this machine's clock.
void RemoteStage::Translate(StageTrace* trace) {
  MutexLock lock(&mutex_);
  clock_.Add(trace->asked, trace->answered, Clock::now());
  for (StageSpan& s : trace->spans) s.began -= clock_.offset();
  trace->clock_error = clock_.error();
}

void RemoteStage::OnEvent(StageEvent event, uint64_t number) {
  event.worker = name_;
  if (auto* trace = std::get_if<StageTrace>(&event.what)) Translate(trace);
  EventSink sink;
  {
    MutexLock lock(&mutex_);
    if (number != 0 && number <= last_event_) return;
    if (number != 0) last_event_ = number;
    sink = sink_;
  }
  if (sink) sink(std::move(event));
}

}  // namespace gyre
