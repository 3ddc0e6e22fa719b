// A coroutine that reads a part of a text and waits wherever the text so far ends. Pure.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace gyre {

// Its own frame is all that it owns. It says at its end whether the text was what it reads.
class Reading {
 public:
  struct promise_type {
    bool fits = false;
    std::exception_ptr error;
    Reading get_return_object() { return Reading(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_value(bool v) { fits = v; }
    void unhandled_exception() { error = std::current_exception(); }
  };

  Reading() = default;
  explicit Reading(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Reading(Reading&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Reading& operator=(Reading&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Reading() {
    if (handle_) handle_.destroy();
  }

  explicit operator bool() const { return handle_ != nullptr; }
  // Goes on until it waits for more text. True: it has ended.
  bool Go() {
    handle_.resume();
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return handle_.done();
  }
  bool fits() const { return handle_.promise().fits; }

 private:
  std::coroutine_handle<promise_type> handle_ = nullptr;
};

}  // namespace gyre
