// Exit codes for the shell: 0 done, 1 failed, 2 usage, 130 interrupted.
#pragma once

#include <utility>

#include "base/status.h"

namespace gyre {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitInterrupted = 130;

// The same error as a mistake in how the command was called. OK stays OK.
Status AsUsage(Status status);
template <typename... Args>
Status UsageError(fmt::format_string<Args...> format, Args&&... args) {
  return AsUsage(InvalidArgument(format, std::forward<Args>(args)...));
}

// kCancelled means that a signal ended the command.
int ExitCode(const Status& status);

}  // namespace gyre
