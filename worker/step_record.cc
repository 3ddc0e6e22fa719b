#include "worker/step_record.h"

namespace gyre {

void StepRecord::Add(const StageSpan& span) {
  MutexLock lock(&mutex_);
  times_.Add(span.computed);
  if (span.began >= trace_until_) {
    spans_.clear();  // nobody asks any more
  } else if (spans_.size() < kMaxTraceSpans) {
    spans_.push_back(span);
  }
}

double StepRecord::TakeBusyShare() {
  MutexLock lock(&mutex_);
  const Deadline now = Clock::now();
  const Duration spent = busy() - shown_busy_, wall = now - shown_at_;
  shown_busy_ += spent;
  shown_at_ = now;
  return wall.count() > 0 ? static_cast<double>(spent.count()) / static_cast<double>(wall.count()) : 0;
}

LatencyHistogram StepRecord::times() {
  MutexLock lock(&mutex_);
  return times_;
}

StageTrace StepRecord::TakeTrace(Deadline asked) {
  constexpr Duration kRecord = std::chrono::seconds(5);
  StageTrace trace{.asked = asked};
  MutexLock lock(&mutex_);
  trace.answered = Clock::now();
  trace_until_ = trace.answered + kRecord;
  trace.spans.swap(spans_);
  return trace;
}

}  // namespace gyre
