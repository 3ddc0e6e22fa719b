// Links over long ways: what comes to this process arrives so much later.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "transport/ring_port.h"

namespace gyre::testing {

// The receiving end of a hop. Frames keep their order, and as many may be on their way as there are.
class DelayedLink : public Link {
 public:
  DelayedLink(std::unique_ptr<Link> inner, Duration delay) : inner_(std::move(inner)), delay_(delay) {
    SetCertifiedPeer(inner_->certified_peer());
    thread_ = std::thread([this] { Carry(); });
  }
  ~DelayedLink() override {
    inner_->Close();
    thread_.join();
  }
  Status Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) override {
    return inner_->Send(header, parts, deadline);
  }
  size_t Room() const override { return inner_->Room(); }
  StatusOr<Frame> Recv(Deadline deadline) override {
    MutexLock lock(&mutex_);
    for (;;) {
      if (std::exchange(woken_, false)) return absl::CancelledError("woken");
      const Deadline now = Clock::now();
      if (!frames_.empty() && frames_.front().first <= now) {
        Frame frame = std::move(frames_.front().second);
        frames_.pop_front();
        return frame;
      }
      if (frames_.empty() && !ended_.ok()) return ended_;
      if (now >= deadline) return absl::DeadlineExceededError("no frame came");
      changed_.WaitUntil(&mutex_, frames_.empty() ? deadline : std::min(deadline, frames_.front().first));
    }
  }
  void Wake() override {
    {
      MutexLock lock(&mutex_);
      woken_ = true;
    }
    changed_.Signal();
  }
  uint64_t received() const override { return inner_->received(); }
  Transport transport() const override { return inner_->transport(); }
  void Close() override { inner_->Close(); }

 private:
  void Carry() {
    for (;;) {
      StatusOr<Frame> frame = inner_->Recv(kNoDeadline);
      {
        MutexLock lock(&mutex_);
        if (frame.ok()) {
          frames_.emplace_back(Clock::now() + delay_, *std::move(frame));
        } else {
          ended_ = frame.status();
        }
      }
      changed_.Signal();
      if (!frame.ok()) return;
    }
  }

  const std::unique_ptr<Link> inner_;
  const Duration delay_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<Deadline, Frame>> frames_ GYRE_GUARDED_BY(mutex_);
  Status ended_ GYRE_GUARDED_BY(mutex_);
  bool woken_ GYRE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Delays what comes over the hops of a ring.
class DelayedPort : public RingPort {
 public:
  DelayedPort(std::unique_ptr<RingPort> inner, Duration delay) : inner_(std::move(inner)), delay_(delay) {}
  const std::string& address() const override { return inner_->address(); }
  StatusOr<std::unique_ptr<Link>> Dial(const std::string& address, const Hello& hello, Deadline deadline) override {
    return inner_->Dial(address, hello, deadline);
  }
  StatusOr<std::unique_ptr<Link>> Accept(const Hello& expected, Deadline deadline) override {
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, inner_->Accept(expected, deadline));
    return std::make_unique<DelayedLink>(std::move(link), delay_);
  }
  void SetBulkHandler(const std::string& name, BulkHandler handler) override {
    inner_->SetBulkHandler(name, std::move(handler));
  }
  void SetWeightsHandler(const RingKey& key, BulkHandler handler) override {
    inner_->SetWeightsHandler(key, std::move(handler));
  }
  void SetKey(Epoch epoch, const RingKey& key) override { inner_->SetKey(epoch, key); }
  void Cancel(Epoch epoch) override { inner_->Cancel(epoch); }
  void Serves(Epoch epoch) override { inner_->Serves(epoch); }
  RingPortStats stats() const override { return inner_->stats(); }

 private:
  const std::unique_ptr<RingPort> inner_;
  const Duration delay_;
};

// For RuntimeOptions::wrap_port.
inline auto Delays(Duration delay) {
  return [delay](std::unique_ptr<RingPort> port) -> std::unique_ptr<RingPort> {
    return std::make_unique<DelayedPort>(std::move(port), delay);
  };
}

}  // namespace gyre::testing
