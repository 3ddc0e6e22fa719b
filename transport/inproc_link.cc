#include "transport/inproc_link.h"

#include <algorithm>
#include <deque>

#include "base/crc32c.h"
#include "base/mutex.h"
#include "base/wakeup.h"

namespace gyre {
namespace {

// One direction. The sender and the receiver each wait on their own event.
class Pipe {
 public:
  explicit Pipe(const InprocOptions& options) : options_(options) {}

  size_t Room() {
    MutexLock lock(&mutex_);
    if (closed_ || frames_.empty()) return kMaxPayload;
    if (frames_.size() >= options_.max_queued_frames || queued_bytes_ >= options_.max_queued_bytes) return 0;
    return options_.max_queued_bytes - queued_bytes_;
  }

  Status Push(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) {
    size_t length = 0;
    for (ByteSpan part : parts) length += part.size();
    GYRE_RETURN_IF_ERROR(CheckPayload(length));
    header.length = length;
    Frame frame{.header = header, .payload = {}};
    frame.payload.reserve(length);
    for (ByteSpan part : parts) frame.payload.insert(frame.payload.end(), part.begin(), part.end());
    if (options_.check_crc) frame.header.payload_crc = Crc32c(frame.payload);
    for (;;) {
      {
        MutexLock lock(&mutex_);
        if (closed_) return Unavailable("the link is closed");
        const bool room = frames_.size() < options_.max_queued_frames &&
                          (frames_.empty() || queued_bytes_ + length <= options_.max_queued_bytes);
        if (room) {
          queued_bytes_ += length;
          frames_.push_back(std::move(frame));
          break;
        }
      }
      if (!has_room_.Wait(deadline) && Clock::now() >= deadline) return DeadlineExceeded("the peer takes nothing in");
    }
    has_frame_.Set();
    return absl::OkStatus();
  }

  StatusOr<Frame> Pop(Deadline deadline) {
    for (;;) {
      {
        MutexLock lock(&mutex_);
        if (woken_) {
          woken_ = false;
          return absl::CancelledError("woken");
        }
        if (!frames_.empty()) {
          Frame frame = std::move(frames_.front());
          frames_.pop_front();
          queued_bytes_ -= frame.payload.size();
          has_room_.Set();
          if (options_.check_crc && Crc32c(frame.payload) != frame.header.payload_crc) {
            closed_ = true;
            return DataLoss("a payload's checksum is wrong");
          }
          return frame;
        }
        if (closed_) return Unavailable("the peer closed the link");
      }
      if (!has_frame_.Wait(deadline)) return DeadlineExceeded("nothing came");
    }
  }

  void Wake() {
    {
      MutexLock lock(&mutex_);
      woken_ = true;
    }
    has_frame_.Set();
  }

  void Close() {
    {
      MutexLock lock(&mutex_);
      if (closed_) return;
      closed_ = true;
    }
    has_frame_.Set();
    has_room_.Set();
  }

 private:
  const InprocOptions options_;
  WakeUp has_frame_;
  WakeUp has_room_;
  Mutex mutex_;
  std::deque<Frame> frames_ GYRE_GUARDED_BY(mutex_);
  size_t queued_bytes_ GYRE_GUARDED_BY(mutex_) = 0;
  bool closed_ GYRE_GUARDED_BY(mutex_) = false;
  bool woken_ GYRE_GUARDED_BY(mutex_) = false;
};

class InprocLink : public Link {
 public:
  InprocLink(std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in) : out_(std::move(out)), in_(std::move(in)) {}
  ~InprocLink() override { InprocLink::Close(); }

  Status Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) override {
    return out_->Push(header, parts, deadline);
  }
  size_t Room() const override { return out_->Room(); }
  StatusOr<Frame> Recv(Deadline deadline) override { return in_->Pop(deadline); }
  void Wake() override { in_->Wake(); }
  void Close() override {
    out_->Close();
    in_->Close();
  }

 private:
  const std::shared_ptr<Pipe> out_;
  const std::shared_ptr<Pipe> in_;
};

}  // namespace

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> MakeInprocLinkPair(const InprocOptions& options) {
  auto there = std::make_shared<Pipe>(options);
  auto back = std::make_shared<Pipe>(options);
  return {std::make_unique<InprocLink>(there, back), std::make_unique<InprocLink>(back, there)};
}

}  // namespace gyre
