#include "coordinator/cluster/status_board.h"

#include <algorithm>
#include <utility>

namespace gyre {

void StatusBoard::Show(News news) {
  {
    MutexLock lock(&mutex_);
    const bool same = !recorded_ && SameCluster(news_.status, news.status);
    news_ = std::move(news);
    recorded_ = false;
    changed_.SignalAll();
    if (same) return;
    ++revision_;
  }
  Tell();
}

void StatusBoard::Tell() {
  std::vector<std::shared_ptr<StatusSubscription>> subscribers;
  {
    MutexLock lock(&mutex_);
    for (const auto& weak : subscriptions_) {
      if (auto alive = weak.lock()) subscribers.push_back(std::move(alive));
    }
  }
  for (const auto& s : subscribers) s->Tell();
}

void StatusBoard::Record(PlanRecord record) {
  record.at = std::chrono::system_clock::now();
  MutexLock lock(&mutex_);
  recorded_ = true;
  history_.push_back(std::move(record));
  if (history_.size() > kPlanHistory) history_.pop_front();
}

void StatusBoard::Record(ClusterEvent event) {
  event.at = std::chrono::system_clock::now();
  MutexLock lock(&mutex_);
  event.number = ++events_recorded_;
  recorded_ = true;
  events_.push_back(std::move(event));
  if (events_.size() > kClusterEvents) events_.pop_front();
}

void StatusBoard::CountTokens(Deadline now, uint64_t generated) {
  MutexLock lock(&mutex_);
  tokens_.Add(now, generated);
}

void StatusBoard::End(const Status& why) {
  {
    MutexLock lock(&mutex_);
    if (!ended_.ok()) return;
    ended_ = why;
    news_.serving = false;
    ++revision_;
    changed_.SignalAll();
  }
  Tell();
}

ClusterStatus StatusBoard::Read(Deadline now) const {
  MutexLock lock(&mutex_);
  ClusterStatus s = news_.status;
  s.revision = revision_;
  s.history.assign(history_.begin(), history_.end());
  s.events.assign(events_.begin(), events_.end());
  s.tokens_per_second = tokens_.PerSecond(now);
  return s;
}

Status StatusBoard::WaitForPlan(Deadline deadline) const {
  MutexLock lock(&mutex_);
  const uint64_t failures = news_.failures;
  while (!news_.serving) {
    GYRE_RETURN_IF_ERROR(ended_);
    if (news_.failures != failures) return news_.failure;
    if (!changed_.WaitUntil(&mutex_, deadline) && Clock::now() >= deadline) {
      return DeadlineExceeded("no plan yet: {}", news_.status.state);
    }
  }
  return absl::OkStatus();
}

Status StatusBoard::ended() const {
  MutexLock lock(&mutex_);
  return ended_;
}

std::shared_ptr<void> StatusBoard::Subscribe(std::function<void()> changed) {
  auto subscription = std::make_shared<StatusSubscription>(std::move(changed));
  MutexLock lock(&mutex_);
  subscriptions_.erase(
      std::remove_if(subscriptions_.begin(), subscriptions_.end(), [](const auto& weak) { return weak.expired(); }),
      subscriptions_.end());
  subscriptions_.push_back(subscription);
  // The holder's end is the subscription's, also while Tell keeps the object alive.
  return {subscription.get(), [subscription](void*) { subscription->End(); }};
}

}  // namespace gyre
