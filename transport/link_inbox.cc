#include "transport/link_inbox.h"

#include <utility>

namespace gyre {

void LinkInbox::Push(Command command) {
  {
    MutexLock lock(&mutex_);
    commands_.push_back(std::move(command));
    // Wake sets a flag and sends a signal, but does no I/O on the link.
    if (waiting_ != nullptr) waiting_->Wake();
  }
  wake_.Set();
}

std::optional<LinkInbox::Command> LinkInbox::TryPop() {
  MutexLock lock(&mutex_);
  if (commands_.empty()) return std::nullopt;
  std::optional<Command> command(std::move(commands_.front()));
  commands_.pop_front();
  return command;
}

void LinkInbox::TakeAll(std::deque<Command>* commands) {
  MutexLock lock(&mutex_);
  commands->swap(commands_);
}

StatusOr<Frame> LinkInbox::Recv(Link& link, Deadline deadline, IfCommands if_commands) {
  {
    MutexLock lock(&mutex_);
    if (commands_.empty()) {
      waiting_ = &link;
    } else if (if_commands == IfCommands::kReturn) {
      return absl::CancelledError("a command came");
    } else {
      deadline = Clock::now();
    }
  }
  StatusOr<Frame> frame = link.Recv(deadline);
  MutexLock lock(&mutex_);
  waiting_ = nullptr;
  return frame;
}

}  // namespace gyre
