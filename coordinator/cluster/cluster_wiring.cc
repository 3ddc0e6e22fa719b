#include "coordinator/cluster/cluster_wiring.h"

#include <exception>

#include "base/thread.h"
#include "transport/queued_link.h"

namespace gyre {
namespace {

constexpr size_t kMaxJobs = 64;

RingEnds NoEnds(const Status& why) { return {nullptr, nullptr, why, why}; }

}  // namespace

// The last stage's link first: it waits for that stage's loading, and the first stage waits here meanwhile. So nothing
// of the coordinator fails because a link between two stages does. Stages may load for hours before they dial; the plan
// change gives up on silence, and then this wait is cancelled.
RingEnds Wiring::Connect(const Plan& plan) {
  Hello hello{.role = LinkRole::kRing,
              .epoch = plan.epoch,
              .hop = static_cast<uint32_t>(plan.stages.size()),
              .model_hash = plan.model_hash,
              .key = plan.key,
              .from = plan.stages.back().worker(),
              .to = kCoordinatorName,
              .wire = plan.wire,
              .transport = plan.transport};
  port_->SetKey(plan.epoch, plan.key);
  RingEnds ends;
  StatusOr<std::unique_ptr<Link>> from_last = port_->Accept(hello, kNoDeadline);
  ends.from_last_status = from_last.status();
  ends.to_first_status = absl::CancelledError("the last link failed before");
  if (!from_last.ok()) return ends;
  ends.from_last = *std::move(from_last);
  hello.hop = 0;
  hello.from = kCoordinatorName;
  hello.to = plan.stages.front().worker();
  StatusOr<std::unique_ptr<Link>> to_first = port_->Dial(plan.HopAddress(0), hello, kNoDeadline);
  ends.to_first_status = to_first.status();
  if (to_first.ok()) ends.to_first = MakeQueuedLink(*std::move(to_first));
  return ends;
}

void Wiring::Run(const Plan& plan) {
  RingEnds ends;
  // The edge of the thread: when descriptors run out, say, the plan fails and the cluster goes on.
  try {
    ends = Connect(plan);
  } catch (const std::exception& e) {
    ends = NoEnds(Internal("the links of plan {} can't be made: {}", plan.epoch.number, e.what()));
  }
  done_(plan.epoch, std::move(ends));
}

void Wiring::Start(const Plan& plan) {
  JoinDone();
  if (jobs_.size() >= kMaxJobs) {
    return done_(plan.epoch, NoEnds(ResourceExhausted("{} plans are still being given up", jobs_.size())));
  }
  Job& job = jobs_.emplace_back();
  StatusOr<std::thread> started = StartThread("wiring", [this, plan, &job] {
    Run(plan);
    job.done = true;
  });
  if (started.ok()) {
    job.thread = *std::move(started);
    return;
  }
  jobs_.pop_back();
  done_(plan.epoch, NoEnds(Annotate(started.status(), fmt::format("the links of plan {}", plan.epoch.number))));
}

// Joins only threads that have ended, so that joining takes no time.
void Wiring::JoinDone() {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const auto next = std::next(it);
    if (it->done) {
      it->thread.join();
      jobs_.erase(it);
    }
    it = next;
  }
}

void Wiring::Stop() {
  for (Job& job : jobs_) job.thread.join();
  jobs_.clear();
}

}  // namespace gyre
