#include "worker/replica.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "worker/catch_exhausted.h"
#include "worker/migration.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

// Between two rounds, after one that found that the source has computed, and after one that did not.
constexpr Duration kPause = milliseconds(25), kIdlePause = milliseconds(200);
// Before a link that failed is dialed again: twice as long after each further failure.
constexpr Duration kRetry = milliseconds(250), kLongestRetry = std::chrono::seconds(30);

}  // namespace

void ReplicaStore::Begin(const ReplicaOrder& order) {
  std::map<uint32_t, Replicated> dropped;  // goes without the lock
  MutexLock lock(&mutex_);
  dropped.swap(layers_);
  pages_ = bytes_ = 0;
  step_.reset();
  for (const auto& [index, limit] : order.layers) {
    Replicated& m = layers_[index];
    const auto before = dropped.find(index);
    const bool stays = before != dropped.end() && source_ == order.source &&
                       before->second.limit.pages == limit.pages && before->second.limit.page_bytes == limit.page_bytes;
    if (stays) m = std::move(before->second);
    m.limit = limit;
    pages_ += m.pages.size();
    bytes_ += m.pages.size() * limit.page_bytes;
  }
  epoch_ = order.epoch;
  source_ = order.source;
  frozen_ = false;
}

std::optional<uint64_t> ReplicaStore::Freeze(uint64_t plan) {
  MutexLock lock(&mutex_);
  frozen_ = true;
  return plan != 0 && epoch_.number == plan ? step_ : std::nullopt;
}

void ReplicaStore::Drop() {
  std::map<uint32_t, Replicated> dropped;
  MutexLock lock(&mutex_);
  dropped.swap(layers_);
  pages_ = bytes_ = 0;
  step_.reset();
  epoch_ = {};
  source_.clear();
  frozen_ = true;
}

PullPages ReplicaStore::RequestFor(uint32_t layer, BlockId from) const {
  MutexLock lock(&mutex_);
  const auto it = layers_.find(layer);
  PullPages request{.layer = layer, .from = from, .max_bytes = kPageFrameBytes, .check = {}, .kind = PullKind::kFull};
  if (it != layers_.end()) request.since = it->second.since, request.pool = it->second.pool;
  return request;
}

Status ReplicaStore::Take(Epoch epoch, const Pages& p, bool first) {
  std::map<BlockId, Page> dropped;  // goes without the lock
  MutexLock lock(&mutex_);
  if (frozen_ || epoch_ != epoch) return absl::CancelledError("the replica is of another plan");
  const auto it = layers_.find(p.layer);
  if (it == layers_.end()) return DataLoss("pages of layer {} came, nobody asked for it", p.layer);
  Replicated& m = it->second;
  if (p.page_bytes != m.limit.page_bytes) {
    return DataLoss("pages of layer {} have {} bytes, expected {}", p.layer, p.page_bytes, m.limit.page_bytes);
  }
  if (p.pool != m.pool) {
    // Nothing that was there before is of this pool, and the source knows that as well as this end does.
    if (!first) return DataLoss("the pages of layer {} are of two pools", p.layer);
    pages_ -= m.pages.size();
    bytes_ -= m.pages.size() * m.limit.page_bytes;
    dropped.swap(m.pages);
    m.pool = p.pool;
    m.since = 0;
  }
  if (first) m.next_since = p.step;
  m.seen = std::max(m.seen, p.step);
  for (size_t i = 0; i < p.ids.size(); ++i) {
    if (p.ids[i] >= m.limit.pages) {
      return DataLoss("page {} of layer {} came, there are {}", p.ids[i], p.layer, m.limit.pages);
    }
    Page& page = m.pages[p.ids[i]];
    if (page.data.empty()) ++pages_, bytes_ += p.page_bytes;
    page.stamp = ++stamps_;
    const auto data = p.data.subspan(i * p.page_bytes, p.page_bytes);
    page.data.assign(data.begin(), data.end());
  }
  if (p.next == kNoBlock) m.since = m.next_since;
  return absl::OkStatus();
}

void ReplicaStore::Whole(Epoch epoch, uint64_t step) {
  MutexLock lock(&mutex_);
  if (!frozen_ && epoch_ == epoch) step_ = std::max(step_.value_or(0), step);
}

Status ReplicaStore::Export(PageExport& e) const {
  MutexLock lock(&mutex_);
  const PullPages& request = e.request;
  PageExport::Answer answer;
  answer.pages.layer = request.layer;
  answer.pages.step = stamps_;
  const auto it = layers_.find(request.layer);
  if (epoch_.number != request.replica || it == layers_.end()) {
    answer.pages.checked.assign(request.check.size(), 0);
    e.answers.push_back(std::move(answer));
    return absl::OkStatus();
  }
  if (!frozen_) return FailedPrecondition("the replica of plan {} is not final", request.replica);
  const Replicated& m = it->second;
  answer.pages.page_bytes = m.limit.page_bytes;
  answer.pages.ring_step = m.seen;
  if (request.check.size() > m.limit.pages) {
    return InvalidArgument("stamps of {} pages of layer {} are asked for, there are {}", request.check.size(),
                           request.layer, m.limit.pages);
  }
  for (const BlockId b : request.check) {
    const auto page = m.pages.find(b);
    answer.pages.checked.push_back(page == m.pages.end() ? 0 : page->second.stamp);
  }
  // False: the frame is full.
  const auto add = [&](BlockId id, const Page& page) {
    if (page.stamp <= request.since) return true;
    if (!answer.pages.ids.empty() && answer.data.size() + m.limit.page_bytes > kPageFrameBytes) return false;
    answer.pages.ids.push_back(id);
    answer.pages.written.push_back(page.stamp);
    answer.data.insert(answer.data.end(), page.data.begin(), page.data.end());
    return true;
  };
  if (request.only) {
    for (size_t i = request.from; i < request.check.size() && answer.pages.next == kNoBlock; ++i) {
      const auto page = m.pages.find(request.check[i]);
      if (page != m.pages.end() && !add(page->first, page->second)) answer.pages.next = static_cast<BlockId>(i);
    }
  } else {
    for (auto page = m.pages.lower_bound(request.from); page != m.pages.end(); ++page) {
      if (add(page->first, page->second)) continue;
      answer.pages.next = page->first;
      break;
    }
  }
  e.answers.push_back(std::move(answer));
  return absl::OkStatus();
}

ReplicaState ReplicaStore::state() const {
  MutexLock lock(&mutex_);
  return {.plan = epoch_.number, .step = step_, .pages = pages_, .bytes = bytes_};
}

void Replica::Start() {
  thread_ = MakeThread("replica", [this] { worker_.guard("replica", [this] { Loop(); }); });
}

void Replica::Close() {
  stopping_ = true;
  std::shared_ptr<Work> awaited, current;
  MutexLock lock(&mutex_);
  awaited = Replace(&awaited_, nullptr);
  current = Replace(&current_, nullptr);
  changed_.SignalAll();
}

std::shared_ptr<Replica::Work> Replica::Replace(std::shared_ptr<Work>* place, std::shared_ptr<Work> work) {
  if (*place != nullptr && (*place)->link != nullptr) (*place)->link->Close();
  return std::exchange(*place, std::move(work));
}

void Replica::Await(ReplicaOrder order, Dial dial) {
  auto work =
      std::make_shared<Work>(Work{.order = std::move(order), .dial = std::move(dial), .link = {}, .counted = {}});
  std::shared_ptr<Work> before;
  MutexLock lock(&mutex_);
  if (!stopping_) before = Replace(&awaited_, std::move(work));
}

void Replica::Serve(Epoch epoch) {
  std::shared_ptr<Work> serves, before, other;
  {
    MutexLock lock(&mutex_);
    serves = std::exchange(awaited_, nullptr);
    if (serves != nullptr && serves->order.epoch != epoch) other = Replace(&serves, nullptr);
    before = Replace(&current_, nullptr);
  }
  if (serves == nullptr) return store_.Drop();
  store_.Begin(serves->order);
  before.reset();
  MutexLock lock(&mutex_);
  if (stopping_) return;
  before = Replace(&current_, std::move(serves));
  changed_.SignalAll();
}

void Replica::Forget() {
  std::shared_ptr<Work> awaited;
  MutexLock lock(&mutex_);
  awaited = Replace(&awaited_, nullptr);
}

std::optional<uint64_t> Replica::Freeze(uint64_t plan) {
  const std::optional<uint64_t> step = store_.Freeze(plan);
  std::shared_ptr<Work> current;
  MutexLock lock(&mutex_);
  current = Replace(&current_, nullptr);
  return step;
}

void Replica::Drop() {
  std::shared_ptr<Work> awaited, current;
  {
    MutexLock lock(&mutex_);
    awaited = Replace(&awaited_, nullptr);
    current = Replace(&current_, nullptr);
  }
  store_.Drop();
}

bool Replica::Current(const std::shared_ptr<Work>& work) {
  MutexLock lock(&mutex_);
  return !stopping_ && current_ == work;
}

void Replica::Loop() {
  while (!stopping_) {
    std::shared_ptr<Work> work;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && (current_ == nullptr || Clock::now() < current_->due)) {
        changed_.WaitUntil(&mutex_, current_ != nullptr ? current_->due : kNoDeadline);
      }
      work = current_;
    }
    if (stopping_) return;
    const StatusOr<bool> ran = CatchExhausted([&]() -> StatusOr<bool> {
      GYRE_RETURN_IF_ERROR(Connect(work));
      return Round(work);
    });
    if (ran.ok()) {
      work->due = After(*ran ? kPause : kIdlePause);
      work->retry = {};
      continue;
    }
    if (!Current(work)) continue;
    // The pages stay, and the step up to which they are whole.
    const bool exhausted = work->link != nullptr && absl::IsResourceExhausted(ran.status());
    const bool first = work->retry == Duration{};  // as with each plan change, where the source is told first
    Log(first && !exhausted ? LogLevel::kInfo : LogLevel::kWarn, "{}: the replica of {} {}: {}", options_.name,
        work->order.source, exhausted ? "ends with this plan" : "waits for another link", Message(ran.status()));
    if (exhausted) store_.Drop();
    work->retry = first ? kRetry : std::min(2 * work->retry, kLongestRetry);
    work->due = exhausted ? kNoDeadline : After(work->retry);
    work->counted.reset();
    std::shared_ptr<Link> ended;  // goes without the lock
    MutexLock lock(&mutex_);
    ended = std::move(work->link);
    work->link = nullptr;
    if (ended != nullptr) ended->Close();
  }
}

Status Replica::Connect(const std::shared_ptr<Work>& work) {
  if (work->link != nullptr) return absl::OkStatus();
  GYRE_ASSIGN_OR_RETURN(std::shared_ptr<Link> link, work->dial());
  MutexLock lock(&mutex_);
  if (stopping_ || current_ != work) {
    link->Close();
    return absl::CancelledError("the plan serves no more");
  }
  work->link = std::move(link);
  return absl::OkStatus();
}

StatusOr<bool> Replica::Round(const std::shared_ptr<Work>& work) {
  const ReplicaOrder& order = work->order;
  const auto ask = [&](uint32_t layer, BlockId from) {
    return AskForPages(*work->link, order.epoch, store_.RequestFor(layer, from), options_.bulk_silence);
  };
  std::set<uint32_t> started;
  uint64_t count = 0, step = UINT64_MAX, counted = 0;
  size_t outstanding = 0;
  for (auto next = order.layers.begin(); outstanding > 0 || next != order.layers.end();) {
    // The first answer says whether there is anything new.
    while (next != order.layers.end() && outstanding < (started.empty() ? 1 : kPullsAtOnce)) {
      GYRE_RETURN_IF_ERROR(ask(next->first, 0));
      ++next;
      ++outstanding;
    }
    Frame frame;
    GYRE_ASSIGN_OR_RETURN(const Pages pages,
                          ReceivePages(
                              *work->link, options_.bulk_silence, count, [&] { return !Current(work); }, &frame));
    const bool first = started.insert(pages.layer).second;
    if (first) step = std::min(step, pages.ring_step);
    if (first && started.size() == 1) {
      counted = pages.step;
      if (work->counted == counted && pages.ids.empty() && pages.next == kNoBlock) {
        store_.Whole(order.epoch, step);
        return false;
      }
    }
    GYRE_RETURN_IF_ERROR(store_.Take(order.epoch, pages, first));
    count += pages.ids.size();
    if (pages.next == kMoreFollows) continue;
    --outstanding;
    if (pages.next == kNoBlock) continue;
    GYRE_RETURN_IF_ERROR(ask(pages.layer, pages.next));
    ++outstanding;
  }
  work->counted = counted;
  store_.Whole(order.epoch, step);
  return true;
}

}  // namespace gyre
