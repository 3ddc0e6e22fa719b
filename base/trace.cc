#include "base/trace.h"

#include <algorithm>

namespace gyre {

void Tracer::Add(const TraceEvent& event) {
  if (!on()) return;
  MutexLock lock(&mutex_);
  if (events_.empty()) return;
  events_[count_++ % capacity_] = event;
}

void Tracer::AddSpans(const std::string& name, const std::vector<StageSpan>& spans, Duration clock_error) {
  constexpr size_t kMembers = 1024;
  if (!on() || spans.empty()) return;
  uint32_t member = 0;
  {
    MutexLock lock(&mutex_);
    while (member < members_.size() && members_[member].name != name) ++member;
    if (member == kMembers) return;
    if (member == members_.size()) members_.push_back({.name = name});
    members_[member].clock_error = clock_error;
  }
  for (const StageSpan& s : spans) {
    Add({.kind = TraceKind::kStageStep,
         .rows = s.rows,
         .id = s.step,
         .at = s.began,
         .member = member,
         .stage = s.stage,
         .last = s.last,
         .computed = s.computed,
         .sent = s.sent});
  }
}

Tracer::Session::Session(Tracer& tracer) : tracer_(tracer) {
  MutexLock lock(&tracer_.mutex_);
  tracer_.events_.resize(tracer_.capacity_);
  from_ = tracer_.count_;
  ++tracer_.sessions_;
}

Tracer::Session::~Session() { --tracer_.sessions_; }

std::vector<TraceMember> Tracer::Session::Members() const {
  MutexLock lock(&tracer_.mutex_);
  return tracer_.members_;
}

std::vector<TraceEvent> Tracer::Session::Events() const {
  MutexLock lock(&tracer_.mutex_);
  const uint64_t count = tracer_.count_;
  const uint64_t oldest = count - std::min<uint64_t>(count, tracer_.capacity_);
  std::vector<TraceEvent> out;
  for (uint64_t n = std::max(from_, oldest); n < count; ++n) out.push_back(tracer_.events_[n % tracer_.capacity_]);
  return out;
}

}  // namespace gyre
