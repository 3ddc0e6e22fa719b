#include "worker/worker.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "base/memory.h"
#include "base/mutex.h"
#include "worker/page_server.h"
#include "worker/prepared_stage.h"
#include "worker/replica.h"
#include "worker/stage_loader.h"
#include "worker/stage_runner.h"

namespace gyre {

// The parts of a worker: a runner computes the running stage, a loader prepares the next one, a page server gives the
// running stage's pages to other members, and a replica keeps copies of another member's. Each has threads of its own.
class Worker::Impl : public StageControl {
 public:
  explicit Impl(WorkerOptions options)
      : options_(std::move(options)),
        replica_(options_, Calls()),
        loader_(options_, Calls(), &replica_),
        runner_(options_, Calls(),
                {.take_prepared = [this](Epoch epoch, uint64_t reset) { return loader_.Take(epoch, reset); },
                 .dispose = [this](std::shared_ptr<PreparedStage> stage) { loader_.Dispose(std::move(stage)); }}),
        page_server_(options_,
                     {.post = [this](std::function<void()> job) { runner_.Post(std::move(job)); },
                      .read = [this](PageExport& e) { return runner_.ReadPages(e); },
                      .read_replica = [this](PageExport& e) { return replica_.Export(e); },
                      .check = [this](const std::string& peer, Epoch epoch,
                                      const PullPages& request) { return loader_.CheckPull(peer, epoch, request); },
                      .guard = [this](const std::function<void()>& fn) { Guarded("bulk", fn); }}) {
    try {
      runner_.Start();
      loader_.Start();
      replica_.Start();
    } catch (...) {
      Stop();  // those that run
      throw;
    }
  }

  void Stop() {
    if (stopped_.exchange(true)) return;
    runner_.Close();
    page_server_.Close();
    loader_.Close();
    replica_.Close();
    runner_.Join();
    loader_.Join();
    page_server_.Join();
    replica_.Join();
  }

  const std::string& name() const override { return options_.name; }
  void SetEventSink(EventSink sink) override {
    MutexLock lock(&mutex_);
    sink_ = std::move(sink);
  }
  void Apply(const Change& change) override {
    switch (change.verb) {
      case ChangeVerb::kPrepare:
        // The stage's thread must be free to give its pages, and not wait for a stage that is gone. What still comes
        // over its ring is of steps that nobody counts on.
        if (change.prepare.restores != 0) runner_.EndRing({});
        return loader_.Prepare(change.prepare);
      case ChangeVerb::kMove: return loader_.Move(change.epoch, change.units);
      case ChangeVerb::kCommit: return runner_.Commit(change.epoch, loader_.ResetToken());
      case ChangeVerb::kRelease:
        loader_.Release(change.epoch);
        runner_.Release(change.epoch);
        return replica_.Serve(change.epoch);
      case ChangeVerb::kAbort: return loader_.Abort(change.epoch);
    }
  }
  void Trace(Deadline asked) override { runner_.Trace(asked); }
  void Reset() {
    runner_.Reset();  // first, so that no stage that the loader gives out afterwards begins to run
    loader_.Reset();
    replica_.Drop();
  }
  void AwaitTakeover() {
    loader_.AwaitTakeover();
    replica_.Drop();
  }
  WorkerStats Stats() const {
    WorkerStats stats = runner_.stats();
    stats.pages_sent = page_server_.pages_sent();
    return stats;
  }

  const WorkerOptions& options() const { return options_; }
  StageRunner& runner() { return runner_; }
  StageLoader& loader() { return loader_; }
  const Replica& replica() const { return replica_; }
  PageServer& page_server() { return page_server_; }

 private:
  WorkerCalls Calls() {
    return {.say = [this](Epoch epoch, decltype(StageEvent::what) what) { Say(epoch, std::move(what)); },
            .guard = [this](const char* thread, const std::function<void()>& fn) { Guarded(thread, fn); },
            .after_ring = [this](std::function<void()> job) { runner_.EndRing(std::move(job)); }};
  }
  void Say(Epoch epoch, decltype(StageEvent::what) what);
  void Guarded(const char* thread, const std::function<void()>& fn);
  void Fatal(const Status& why);

  const WorkerOptions options_;
  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  EventSink sink_ GYRE_GUARDED_BY(mutex_);
  Replica replica_;
  StageLoader loader_;
  StageRunner runner_;
  PageServer page_server_;
};

void Worker::Impl::Say(Epoch epoch, decltype(StageEvent::what) what) {
  EventSink sink;
  {
    MutexLock lock(&mutex_);
    sink = sink_;
  }
  if (sink) sink({.worker = options_.name, .epoch = epoch, .what = std::move(what)});
}

void Worker::Impl::Guarded(const char* thread, const std::function<void()>& fn) {
  pthread_setname_np(pthread_self(), (std::string(thread) + " " + options_.name).substr(0, 15).c_str());
  try {
    return fn();
  } catch (const std::exception& e) {
    Fatal(Internal("{}: the {} thread ended by an exception: {}", options_.name, thread, e.what()));
  } catch (...) {
    Fatal(Internal("{}: the {} thread ended by an unknown exception", options_.name, thread));
  }
}

void Worker::Impl::Fatal(const Status& why) {
  LogLine(LogLevel::kError, Message(why));
  if (!options_.on_fatal) std::_Exit(1);
  options_.on_fatal(why);
  runner_.CloseOut();
}

Worker::Worker(WorkerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Worker::~Worker() { impl_->Stop(); }
StageControl& Worker::control() { return *impl_; }
void Worker::ServeBulk(std::unique_ptr<Link> link) { impl_->page_server().Serve(std::move(link)); }
void Worker::AwaitTakeover() { impl_->AwaitTakeover(); }
LayerRange Worker::running_layers() const { return impl_->loader().running_layers(); }
uint64_t Worker::last_step() const { return impl_->runner().last_step(); }
void Worker::Reset() { impl_->Reset(); }
int Worker::threads() const { return impl_->options().threads; }
WorkerStats Worker::stats() const { return impl_->Stats(); }
Duration Worker::busy_time() const { return impl_->runner().record().busy(); }
MemberLoad Worker::TakeLoad() {
  const WorkerStats stats = impl_->Stats();
  const auto busy = std::chrono::duration_cast<std::chrono::microseconds>(impl_->runner().record().busy());
  const std::shared_ptr<Link> out = impl_->runner().RunningOut();
  const LayerClock::Reading layer = impl_->runner().layer_clock().Read();
  const auto micros = [](Duration d) {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(d).count());
  };
  const Duration round_trip = out == nullptr ? Duration{} : out->RoundTrip().value_or(Duration{});
  MemberLoad load{
      .busy = impl_->runner().record().TakeBusyShare(),
      .steps = stats.steps,
      .resident_bytes = ResidentBytes(),
      .busy_us = static_cast<uint64_t>(busy.count()),
      .rows_sent = stats.rows_sent,
      .row_bytes_sent = stats.row_bytes_sent,
      .round_trip_us = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(round_trip).count()),
      .answers_sent = impl_->runner().answers(),
      .answer_bytes_sent = impl_->runner().answer_bytes(),
      .step_times = impl_->runner().record().times(),
      .transport = out == nullptr ? Transport::kAuto : out->transport(),
      .in_layer_us = micros(layer.in_layer),
      .layer_estimate_us = micros(layer.estimate)};
  load.unanswered_us = micros(impl_->runner().Unanswered());
  impl_->runner().FillPlanLoad(&load);
  const ReplicaState replica = impl_->replica().state();
  load.replicated_plan = replica.plan;
  load.replicated_step = replica.step;
  load.replicated_pages = replica.pages;
  load.replicated_bytes = replica.bytes;
  return load;
}
size_t Worker::weight_bytes() const { return impl_->runner().weight_bytes(); }
void Worker::SetFaultHook(std::function<Status()> hook) { impl_->runner().SetFaultHook(std::move(hook)); }
void Worker::SetFrameHookForTest(std::function<void(const Frame&)> hook) {
  impl_->runner().SetFrameHook(std::move(hook));
}
void Worker::SkipCopyingForTest() { impl_->loader().SkipCopying(); }
void Worker::OnStageThread(std::function<void()> fn) { impl_->runner().Post(std::move(fn)); }
void Worker::BreakLinksForTest() { impl_->runner().BreakRunning(); }
void Worker::Stop() { impl_->Stop(); }

}  // namespace gyre
