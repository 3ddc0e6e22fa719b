// Commands for a thread that also waits for the frames of a link: a new command ends its wait.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/wakeup.h"
#include "transport/link.h"

namespace gyre {

class LinkInbox {
 public:
  using Command = std::function<void()>;
  // The behaviour of Recv if commands are waiting already.
  enum class IfCommands : uint8_t {
    kReturn,  // kCancelled, whatever lies in the link
    kLook,    // a frame that is there already, else kDeadlineExceeded
  };

  // Any thread. Never waits for the consumer.
  void Push(Command command);

  // All functions that follow are for the consumer's thread.
  // The oldest command; nullopt: there is none.
  std::optional<Command> TryPop();
  // All commands, the oldest first. REQUIRES: `commands` is empty.
  void TakeAll(std::deque<Command>* commands);
  // The link's next frame, and the errors of Link::Recv. kCancelled: a command came.
  StatusOr<Frame> Recv(Link& link, Deadline deadline, IfCommands if_commands);
  // For use without a link: waits until a command comes. It may return without one.
  void Wait(Deadline deadline) { wake_.Wait(deadline); }

 private:
  WakeUp wake_;
  Mutex mutex_;
  Link* waiting_ GYRE_GUARDED_BY(mutex_) = nullptr;  // the consumer is in its Recv
  std::deque<Command> commands_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
