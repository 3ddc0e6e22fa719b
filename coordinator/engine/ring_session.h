// The coordinator's two ends of a ring: what is sent and comes over them, how far it is, and whether it still answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/engine/engine.h"
#include "transport/link.h"
#include "transport/link_inbox.h"

namespace gyre {

// The engine's thread owns it; only progress() is for any thread. `now` is a time of one clock, which may be another
// one than that of the threads.
class RingSession {
 public:
  // `timeout`: a ring that owes results and gives none for so long is silent.
  explicit RingSession(Duration timeout) : timeout_(timeout) {}

  // Whether there is a ring that did not break.
  bool linked() const { return ring_.from_last != nullptr; }
  Epoch epoch() const { return ring_.epoch; }
  // Why the last ring broke; OK: it did not.
  const Status& broke() const { return broke_; }

  void Begin(const Ring& ring, Deadline now);
  // Closes the links.
  void Break(const Status& why);
  // There is no ring any more, and the last one did not break.
  void Drop();

  // REQUIRES: linked. The errors of Link::Send.
  Status SendStep(StepId step, uint32_t rows, std::span<const ByteSpan> parts, Deadline deadline);
  // A frame that belongs to no step.
  Status Send(FrameKind kind, std::span<const ByteSpan> parts, Deadline deadline);
  // The next frame that is there, and the errors of Link::Recv. REQUIRES: linked.
  StatusOr<Frame> TryRecv();
  // Waits for a frame, which TryRecv gives next, or for a command in the inbox. An error: the ring broke.
  Status Wait(LinkInbox* inbox, Deadline deadline);
  // A frame of this ring has come.
  void Heard(const FrameHeader& header, Deadline now);

  // Called after each pass: whether results are owed.
  void NoteOwed(bool owed);
  // As above, when nothing is owed the silence begins at `now`.
  void NoteQuiet(Deadline now) { quiet_since_ = now; }
  Deadline quiet_since() const { return quiet_since_; }
  // When a ring that owes results and gives none counts as broken.
  Deadline silence_deadline() const {
    return timeout_ > kNoDeadline - quiet_since_ ? kNoDeadline : quiet_since_ + timeout_;
  }
  Duration timeout() const { return timeout_; }

  RingProgress progress() const;

 private:
  const Duration timeout_;
  Ring ring_;  // without links: there is none, or it broke
  Status broke_;
  Deadline quiet_since_{};           // the last result, or the last moment when none was owed
  std::optional<Frame> waited_for_;  // the result that ended a Wait

  std::atomic<uint64_t> step_sent_{0}, step_came_{0};
  mutable Mutex mutex_;
  std::shared_ptr<Link> receiving_ GYRE_GUARDED_BY(mutex_);  // ring_.from_last, also after it broke
  Epoch linked_epoch_ GYRE_GUARDED_BY(mutex_);               // its epoch
  std::optional<Deadline> owes_since_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
