// Exceptions for lack of memory, or of a failing device, as a Status.
#pragma once

#include <new>
#include <system_error>

#include "base/status.h"
#include "kernels/device.h"

namespace gyre {

// Memory or threads that run out, and ops that fail, are an error of what was asked for. Any other exception, such as a
// device that is lost, ends the worker.
template <typename Fn>
auto CatchExhausted(const Fn& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const OutOfDeviceMemory& e) {
    return ResourceExhausted("{}", e.what());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory is left");
  } catch (const DeviceFailed& e) {
    return Internal("{}", e.what());
  } catch (const std::system_error& e) {
    return ResourceExhausted("{}", e.what());
  }
}

}  // namespace gyre
