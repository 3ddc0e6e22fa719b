#include "coordinator/service/event_stream.h"

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/counted.h"
#include "base/thread.h"
#include "coordinator/state/state_keeper.h"

namespace gyre {
namespace {

// A text may be empty; the event itself takes memory too.
size_t BytesOf(const Event& event) {
  size_t bytes = 2 * sizeof(Event);
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    bytes += token->text.size() + token->top.size() * sizeof(TokenLogprob);
  }
  if (const auto* token = std::get_if<PromptTokenEvent>(&event)) {
    bytes += (token->top.size() + token->named.size()) * sizeof(TokenLogprob) + token->logits.size() * sizeof(float);
  }
  if (const auto* logits = std::get_if<LogitsEvent>(&event)) bytes += logits->logits.size() * sizeof(float);
  if (const auto* embedding = std::get_if<EmbeddingEvent>(&event)) bytes += embedding->values.size() * sizeof(float);
  if (const auto* waiting = std::get_if<Waiting>(&event)) bytes += waiting->why.message().size();
  if (const auto* finished = std::get_if<Finished>(&event)) bytes += finished->text.size() + finished->stop.size();
  return bytes;
}

bool IsTerminal(const Event& event) {
  return std::holds_alternative<Finished>(event) || std::holds_alternative<Failed>(event) ||
         std::holds_alternative<Cancelled>(event);
}

// `open`: what is open, with its verb.
Status QueueIsFull(const std::string& open, size_t at_most) {
  return ResourceExhausted("the queue is full: {} open, and at most {} may be; try again later", open, at_most);
}

}  // namespace

// Shared by all streams of an EventStreams, and by sinks that outlive it.
struct EventStreams::Shared {
  Shared(EngineCalls e, const StreamLimits& l, StateKeeper* k) : engine(std::move(e)), limits(l), keeper(k) {}
  const EngineCalls engine;
  const StreamLimits limits;
  StateKeeper* const keeper;
  std::atomic<size_t> queued{0};
  Mutex mutex;
  CondVar changed;
  bool stopping GYRE_GUARDED_BY(mutex) = false;
  std::vector<std::weak_ptr<EventStream::State>> streams GYRE_GUARDED_BY(mutex);  // those with a reader, and some ended
  size_t open GYRE_GUARDED_BY(mutex) = 0;
  size_t scoring GYRE_GUARDED_BY(mutex) = 0;
};

class EventStream::State {
 public:
  // `reader`: its number to the keeper, 0 = the request `id` is not kept.
  State(std::shared_ptr<EventStreams::Shared> shared, StreamOptions options, bool scoring, std::string id,
        uint64_t reader)
      : shared_(std::move(shared)),
        scoring_(scoring),
        may_stall_(options.may_stall),
        id_(std::move(id)),
        reader_(reader),
        ready_(std::move(options.ready)) {}

  const std::string& id() const { return id_; }
  bool kept() const { return reader_ != 0; }
  // Nothing is read before the request is stored.
  void Seal() {
    MutexLock lock(&mutex_);
    sealed_ = true;
  }
  void Unseal() {
    bool call = false;
    {
      MutexLock lock(&mutex_);
      sealed_ = false;
      call = !queue_.empty() && std::exchange(armed_, false);
      arrived_.Signal();
    }
    if (call) Ready();
  }

  // On the engine's thread.
  void Push(SeqId seq, const Event& event) {
    if (kept()) shared_->keeper->OnEvent(id_, reader_, event);
    bool call = false;
    {
      MutexLock lock(&mutex_);
      seq_ = seq;
      if (ended_) return;
      const size_t bytes = BytesOf(event);
      queue_.push_back({event, bytes});
      bytes_ += bytes;
      shared_->queued += bytes;
      ended_ = IsTerminal(event);
      const StreamLimits& limits = shared_->limits;
      const bool full = bytes_ > limits.stream_bytes;
      // Hold and unhold only post to the engine; called under the lock they keep their order.
      if (full && !held_ && !ended_) {
        held_ = true;
        shared_->engine.hold(seq);
      }
      if (full && shared_->queued > limits.total_bytes) {
        DropLocked(
            ResourceExhausted("the client reads too slowly: {} MiB wait for it and others", limits.total_bytes >> 20));
      }
      if (due_since_ == kNoDeadline) due_since_ = Clock::now();
      call = (!sealed_ && std::exchange(armed_, false)) || dropped_;
      arrived_.Signal();
    }
    if (call) Ready();
  }

  std::optional<Event> TryNext() {
    MutexLock lock(&mutex_);
    return TakeLocked();
  }
  std::optional<Event> Next(Deadline deadline) {
    MutexLock lock(&mutex_);
    while ((queue_.empty() || sealed_) && !finished_ && Clock::now() < deadline) {
      due_since_ = kNoDeadline;
      arrived_.WaitUntil(&mutex_, deadline);
    }
    return TakeLocked();
  }
  // Reports the engine's answer; a refused request has no events.
  void Submitted(const StatusOr<SeqId>& seq) {
    MutexLock lock(&mutex_);
    if (seq.ok()) {
      seq_ = *seq;
    } else {
      ended_ = finished_ = true;
    }
  }
  void Cancel() {
    MutexLock lock(&mutex_);
    if (!ended_) shared_->engine.cancel(seq_);
  }
  bool dropped() const {
    MutexLock lock(&mutex_);
    return dropped_;
  }
  // The reader is gone.
  void Close() {
    if (kept()) shared_->keeper->Leave(id_, reader_);
    {
      MutexLock lock(&mutex_);
      if (!ended_) shared_->engine.cancel(seq_);
      ended_ = true;
      ClearLocked();
    }
    {
      MutexLock lock(&shared_->mutex);
      --shared_->open;
      if (scoring_) --shared_->scoring;
    }
    // A call that runs ends first.
    MutexLock lock(&ready_mutex_);
    ready_ = {};
  }
  // Another reader has taken the request up.
  void Displace() {
    {
      MutexLock lock(&mutex_);
      if (dropped_ || finished_) return;
      DropLocked(MakeStatus(absl::StatusCode::kAborted, "the request was reattached by another connection"));
      armed_ = false;
    }
    Ready();
  }
  // On the watcher's thread: gives a reader up that stood still for too long.
  void DropIfStalled(Deadline now) {
    {
      MutexLock lock(&mutex_);
      const Duration stall = shared_->limits.stall;
      if (may_stall_ || dropped_ || due_since_ == kNoDeadline || now - due_since_ < stall) return;
      DropLocked(ResourceExhausted("the client reads too slowly: it took nothing for {:.1f} s",
                                   std::chrono::duration<double>(stall).count()));
      armed_ = false;
    }
    Ready();
  }

 private:
  struct Queued {
    Event event;
    size_t bytes;
  };

  void Ready() {
    MutexLock lock(&ready_mutex_);
    if (ready_) ready_();
  }
  std::optional<Event> TakeLocked() GYRE_REQUIRES(mutex_) {
    if (queue_.empty() || sealed_) {
      armed_ = !finished_;
      due_since_ = kNoDeadline;
      return std::nullopt;
    }
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    bytes_ -= next.bytes;
    shared_->queued -= next.bytes;
    due_since_ = Clock::now();
    finished_ = IsTerminal(next.event);
    if (held_ && !ended_ && bytes_ <= shared_->limits.stream_bytes / 2) {
      held_ = false;
      shared_->engine.unhold(seq_);
    }
    return std::move(next.event);
  }
  void ClearLocked() GYRE_REQUIRES(mutex_) {
    shared_->queued -= bytes_;
    bytes_ = 0;
    queue_.clear();
  }
  void DropLocked(const Status& why) GYRE_REQUIRES(mutex_) {
    if (!finished_) {
      ClearLocked();
      const Event failed = Failed{why};
      queue_.push_back({failed, BytesOf(failed)});
      bytes_ = queue_.back().bytes;
      shared_->queued += bytes_;
    }
    if (!ended_) shared_->engine.cancel(seq_);
    ended_ = dropped_ = true;
    sealed_ = false;
    arrived_.Signal();
  }

  const std::shared_ptr<EventStreams::Shared> shared_;
  const bool scoring_, may_stall_;
  const std::string id_;
  const uint64_t reader_;
  Mutex ready_mutex_;  // held while `ready_` runs
  std::function<void()> ready_ GYRE_GUARDED_BY(ready_mutex_);
  mutable Mutex mutex_;
  CondVar arrived_;
  SeqId seq_ GYRE_GUARDED_BY(mutex_){};
  std::deque<Queued> queue_ GYRE_GUARDED_BY(mutex_);
  size_t bytes_ GYRE_GUARDED_BY(mutex_) = 0;
  bool held_ GYRE_GUARDED_BY(mutex_) = false;      // the engine was told to hold the sequence back
  bool sealed_ GYRE_GUARDED_BY(mutex_) = false;    // the reader gets nothing yet
  bool armed_ GYRE_GUARDED_BY(mutex_) = false;     // the reader waits for a call of `ready`
  bool ended_ GYRE_GUARDED_BY(mutex_) = false;     // nothing more comes from the engine
  bool finished_ GYRE_GUARDED_BY(mutex_) = false;  // the reader took the terminal event
  bool dropped_ GYRE_GUARDED_BY(mutex_) = false;
  // Since when something waits for the reader, or it has not come back for more; kNoDeadline: it waits for us.
  Deadline due_since_ GYRE_GUARDED_BY(mutex_) = Clock::now();
};

EventStream::~EventStream() { state_->Close(); }
std::optional<Event> EventStream::TryNext() { return state_->TryNext(); }
std::optional<Event> EventStream::Next(Deadline deadline) { return state_->Next(deadline); }
void EventStream::Cancel() { state_->Cancel(); }
bool EventStream::dropped() const { return state_->dropped(); }

EngineCalls CallsOf(Engine& engine) {
  return {.submit = [&engine](Request r, EventSink sink) { return engine.Submit(std::move(r), std::move(sink)); },
          .cancel = [&engine](SeqId seq) { engine.Cancel(seq); },
          .hold = [&engine](SeqId seq) { engine.Hold(seq); },
          .unhold = [&engine](SeqId seq) { engine.Unhold(seq); }};
}

EventStreams::EventStreams(EngineCalls engine, const StreamLimits& limits, StateKeeper* keeper)
    : shared_(std::make_shared<Shared>(std::move(engine), limits, keeper)),
      watcher_(MakeThread("streams", [this] { Watch(); })) {}

EventStreams::~EventStreams() {
  {
    MutexLock lock(&shared_->mutex);
    shared_->stopping = true;
    shared_->changed.SignalAll();
  }
  watcher_.join();
}

size_t EventStreams::streams() const {
  MutexLock lock(&shared_->mutex);
  return shared_->open;
}
size_t EventStreams::queued_bytes() const { return shared_->queued; }

bool EventStreams::keeps() const { return shared_->keeper != nullptr; }

StatusOr<std::unique_ptr<EventStream>> EventStreams::Submit(Request request, StreamOptions options) {
  const bool text = request.max_new_tokens > 0 && !request.prompt_logits && !request.prompt_logprobs && !request.score;
  const bool kept = keeps() && text && !request.reattach_id.empty();
  return Open(std::move(request), std::move(options), kept ? shared_->keeper->NewReader() : 0, true);
}

StatusOr<std::unique_ptr<EventStream>> EventStreams::Reattach(const std::string& id, uint64_t tenant,
                                                              StreamOptions options) {
  if (!keeps()) return NotFound("this coordinator keeps no requests that could be reattached: it has no --state");
  const uint64_t reader = shared_->keeper->NewReader();
  GYRE_ASSIGN_OR_RETURN(Request request, shared_->keeper->Reattach(id, tenant, reader));
  std::vector<std::shared_ptr<EventStream::State>> others;
  {
    MutexLock lock(&shared_->mutex);
    for (const auto& weak : shared_->streams) {
      if (auto state = weak.lock(); state != nullptr && state->kept() && state->id() == id) others.push_back(state);
    }
  }
  for (const auto& other : others) other->Displace();
  return Open(std::move(request), std::move(options), reader, false);
}

StatusOr<std::unique_ptr<EventStream>> EventStreams::Open(Request request, StreamOptions options, uint64_t reader,
                                                          bool begins) {
  const bool scoring = request.prompt_logits || (request.score && request.score->logits);
  const StreamLimits& limits = shared_->limits;
  {
    MutexLock lock(&shared_->mutex);
    Status full;
    if (shared_->open >= limits.streams) {
      full = QueueIsFull(Counted(shared_->open, "request is", "requests are"), limits.streams);
    } else if (scoring && shared_->scoring >= limits.scoring_streams) {
      full = QueueIsFull(Counted(shared_->scoring, "request for logits is", "requests for logits are"),
                         limits.scoring_streams);
    }
    if (!full.ok()) {
      if (reader != 0 && !begins) shared_->keeper->Leave(request.reattach_id, reader);
      return full;
    }
    ++shared_->open;
    if (scoring) ++shared_->scoring;
  }
  const std::string id = request.reattach_id;
  auto state = std::make_shared<EventStream::State>(shared_, std::move(options), scoring, id, reader);
  std::unique_ptr<EventStream> stream(new EventStream(state));
  if (reader != 0 && begins) {
    state->Seal();
    shared_->keeper->Begin(request, reader, [state] { state->Unseal(); });
  }
  const StatusOr<SeqId> seq =
      shared_->engine.submit(std::move(request), [state](SeqId n, const Event& event) { state->Push(n, event); });
  state->Submitted(seq);
  if (!seq.ok()) {
    // The request was never there. One that was reattached waits for its reader to come again, as its stream ends here.
    if (reader != 0 && begins) shared_->keeper->Forget(id, reader);
    return seq.status();
  }
  MutexLock lock(&shared_->mutex);
  shared_->streams.push_back(state);
  shared_->changed.Signal();
  return stream;
}

void EventStreams::Watch() {
  pthread_setname_np(pthread_self(), "streams");
  const Duration tick =
      std::clamp<Duration>(shared_->limits.stall / 8, std::chrono::milliseconds(5), std::chrono::seconds(1));
  std::vector<std::shared_ptr<EventStream::State>> alive;
  for (;;) {
    {
      MutexLock lock(&shared_->mutex);
      while (shared_->streams.empty() && !shared_->stopping) shared_->changed.Wait(&shared_->mutex);
      if (!shared_->stopping) shared_->changed.WaitUntil(&shared_->mutex, After(tick));
      if (shared_->stopping) return;
      std::erase_if(shared_->streams, [](const auto& s) { return s.expired(); });
      for (const auto& weak : shared_->streams) {
        if (auto state = weak.lock()) alive.push_back(std::move(state));
      }
    }
    for (const auto& state : alive) state->DropIfStalled(Clock::now());
    alive.clear();
  }
}

}  // namespace gyre
