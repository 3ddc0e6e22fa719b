#include "base/trace.h"

#include <algorithm>

namespace gyre {

void Tracer::Add(const TraceEvent& event) {
  if (!on()) return;
  MutexLock lock(&mutex_);
  if (events_.empty()) return;
  events_[count_++ % capacity_] = event;
}

Tracer::Session::Session(Tracer& tracer) : tracer_(tracer) {
  MutexLock lock(&tracer_.mutex_);
  tracer_.events_.resize(tracer_.capacity_);
  from_ = tracer_.count_;
  ++tracer_.sessions_;
}

Tracer::Session::~Session() { --tracer_.sessions_; }

std::vector<TraceEvent> Tracer::Session::Events() const {
  MutexLock lock(&tracer_.mutex_);
  const uint64_t count = tracer_.count_;
  const uint64_t oldest = count - std::min<uint64_t>(count, tracer_.capacity_);
  std::vector<TraceEvent> out;
  for (uint64_t n = std::max(from_, oldest); n < count; ++n) out.push_back(tracer_.events_[n % tracer_.capacity_]);
  return out;
}

}  // namespace gyre
