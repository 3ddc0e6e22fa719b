#include "coordinator/engine/ring_session.h"

#include <algorithm>
#include <utility>

namespace gyre {

void RingSession::Begin(const Ring& ring, Deadline now) {
  ring_ = ring;
  broke_ = absl::OkStatus();
  waited_for_.reset();
  quiet_since_ = now;
  MutexLock lock(&mutex_);
  receiving_ = ring_.from_last;
  linked_epoch_ = ring_.epoch;
  step_sent_ = step_came_ = 0;
}

void RingSession::Break(const Status& why) {
  ring_.to_first->Close();
  ring_.from_last->Close();
  ring_.to_first = ring_.from_last = nullptr;
  broke_ = why;
  waited_for_.reset();
}

void RingSession::Drop() {
  {
    MutexLock lock(&mutex_);
    receiving_ = nullptr;
  }
  ring_ = {};
  broke_ = absl::OkStatus();
  waited_for_.reset();
}

Status RingSession::SendStep(StepId step, uint32_t rows, std::span<const ByteSpan> parts, Deadline deadline) {
  step_sent_ = static_cast<uint64_t>(step);
  return ring_.to_first->Send(
      {.kind = FrameKind::kTokens, .dtype = WireType::kI32, .epoch = ring_.epoch, .step = step, .rows = rows}, parts,
      deadline);
}

Status RingSession::Send(FrameKind kind, std::span<const ByteSpan> parts, Deadline deadline) {
  return ring_.to_first->Send({.kind = kind, .epoch = ring_.epoch}, parts, deadline);
}

StatusOr<Frame> RingSession::TryRecv() {
  if (std::optional<Frame> frame = std::exchange(waited_for_, std::nullopt)) return *std::move(frame);
  return ring_.from_last->Recv(Clock::now());
}

Status RingSession::Wait(LinkInbox* inbox, Deadline deadline) {
  if (!linked()) {
    inbox->Wait(deadline);
    return absl::OkStatus();
  }
  StatusOr<Frame> frame = inbox->Recv(*ring_.from_last, deadline, LinkInbox::IfCommands::kReturn);
  if (frame.ok()) {
    waited_for_ = *std::move(frame);
    return absl::OkStatus();
  }
  const bool nothing = absl::IsDeadlineExceeded(frame.status()) || absl::IsCancelled(frame.status());
  return nothing ? absl::OkStatus() : frame.status();
}

void RingSession::Heard(const FrameHeader& header, Deadline now) {
  quiet_since_ = now;
  if (header.kind != FrameKind::kAnswer && header.kind != FrameKind::kStepError) return;
  step_came_ = std::max(step_came_.load(), static_cast<uint64_t>(header.step));
}

// What a broken ring owed stays owed.
void RingSession::NoteOwed(bool owed) {
  if (!linked()) return;
  MutexLock lock(&mutex_);
  owes_since_ = owed ? std::optional(quiet_since_) : std::nullopt;
}

RingProgress RingSession::progress() const {
  MutexLock lock(&mutex_);
  if (receiving_ == nullptr) return {};
  return {.plan = linked_epoch_.number,
          .step_sent = step_sent_,
          .step_came = step_came_,
          .bytes_received = receiving_->received(),
          .owes_since = owes_since_};
}

}  // namespace gyre
