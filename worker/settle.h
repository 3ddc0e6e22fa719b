// The end of work on a device that an exception cuts short.
#pragma once

#include <exception>

#include "kernels/ops.h"

namespace gyre {

// Ops and copies that were called may still read or write memory of the host: if an exception passes, this waits for
// them before that memory goes.
class SettleOnError {
 public:
  explicit SettleOnError(Backend& queue) : queue_(queue), exceptions_(std::uncaught_exceptions()) {}
  ~SettleOnError() {
    if (std::uncaught_exceptions() == exceptions_) return;
    try {
      queue_.Finish();
    } catch (const std::exception&) {  // the first error says more
    }
  }
  SettleOnError(const SettleOnError&) = delete;
  SettleOnError& operator=(const SettleOnError&) = delete;

 private:
  Backend& queue_;
  const int exceptions_;
};

}  // namespace gyre
