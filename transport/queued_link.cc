#include "transport/queued_link.h"

#include <deque>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/thread.h"

namespace gyre {
namespace {

class QueuedLink : public Link {
 public:
  QueuedLink(std::unique_ptr<Link> link, size_t max_queued_bytes)
      : link_(std::move(link)), max_queued_bytes_(max_queued_bytes) {
    SetCertifiedPeer(link_->certified_peer());
  }
  ~QueuedLink() override {
    QueuedLink::Close();
    if (thread_.joinable()) thread_.join();
  }

  Status Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) override {
    size_t length = 0;
    for (ByteSpan part : parts) length += part.size();
    GYRE_RETURN_IF_ERROR(CheckPayload(length));
    {
      MutexLock lock(&mutex_);
      if (!failed_.ok()) return failed_;
      if (!queue_.empty()) return QueueLocked(header, parts, length, deadline);
    }
    // Only this thread fills the queue, so the other one sends nothing meanwhile.
    if (length <= link_->Room() || !StartThread()) return link_->Send(header, parts, deadline);
    MutexLock lock(&mutex_);
    return QueueLocked(header, parts, length, deadline);
  }

  StatusOr<Frame> Recv(Deadline deadline) override { return link_->Recv(deadline); }
  void GiveBack(std::vector<std::byte> payload) override { link_->GiveBack(std::move(payload)); }
  void Wake() override { link_->Wake(); }
  uint64_t received() const override { return link_->received(); }
  std::optional<Duration> RoundTrip() const override { return link_->RoundTrip(); }
  Transport transport() const override { return link_->transport(); }
  void Close() override {
    link_->Close();
    MutexLock lock(&mutex_);
    if (failed_.ok()) failed_ = Unavailable("the link is closed");
    changed_.SignalAll();
  }

 private:
  struct Waiting {
    FrameHeader header;
    std::vector<std::byte> payload;
    Deadline deadline;
  };

  Status QueueLocked(const FrameHeader& header, std::span<const ByteSpan> parts, size_t length, Deadline deadline)
      GYRE_REQUIRES(mutex_) {
    // One frame always fits.
    while (failed_.ok() && queued_bytes_ > 0 && queued_bytes_ + length > max_queued_bytes_) {
      if (!changed_.WaitUntil(&mutex_, deadline)) return DeadlineExceeded("the peer takes nothing in");
    }
    if (!failed_.ok()) return failed_;
    Waiting& waiting = queue_.emplace_back(Waiting{.header = header, .payload = {}, .deadline = deadline});
    waiting.payload.reserve(length);
    for (ByteSpan part : parts) waiting.payload.insert(waiting.payload.end(), part.begin(), part.end());
    queued_bytes_ += length;
    changed_.SignalAll();
    return absl::OkStatus();
  }

  bool StartThread() {
    if (thread_.joinable()) return true;
    StatusOr<std::thread> started = gyre::StartThread("sender", [this] { Run(); });
    if (!started.ok()) return false;
    thread_ = *std::move(started);
    return true;
  }

  void Run() {
    for (;;) {
      const Waiting* next = nullptr;
      {
        MutexLock lock(&mutex_);
        while (failed_.ok() && queue_.empty()) changed_.Wait(&mutex_);
        if (!failed_.ok()) return;
        next = &queue_.front();
      }
      const ByteSpan parts[] = {next->payload};
      const Status status = link_->Send(next->header, parts, next->deadline);
      if (!status.ok()) link_->Close();
      MutexLock lock(&mutex_);
      queued_bytes_ -= next->payload.size();
      queue_.pop_front();
      if (!status.ok() && failed_.ok()) failed_ = Unavailable("{}", Message(status));
      changed_.SignalAll();
    }
  }

  const std::unique_ptr<Link> link_;
  const size_t max_queued_bytes_;
  std::thread thread_;  // the sending thread's

  Mutex mutex_;
  CondVar changed_;
  std::deque<Waiting> queue_ GYRE_GUARDED_BY(mutex_);  // its front stays until it has been sent
  size_t queued_bytes_ GYRE_GUARDED_BY(mutex_) = 0;
  Status failed_ GYRE_GUARDED_BY(mutex_);  // final
};

}  // namespace

std::unique_ptr<Link> MakeQueuedLink(std::unique_ptr<Link> link, size_t max_queued_bytes) {
  return std::make_unique<QueuedLink>(std::move(link), max_queued_bytes);
}

}  // namespace gyre
