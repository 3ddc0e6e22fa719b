// Wakes coroutines of the server's thread from other threads: many wakes at once cost one message to that thread.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "boost/asio/as_tuple.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "coordinator/http/exchange.h"

namespace gyre::http {

// Operations return their error code as a value, and throw no exception.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

// One coroutine waits; others of the same thread notify it. A waiter checks its condition in a loop, as a wait may end
// early.
class Signal {
 public:
  explicit Signal(boost::asio::io_context& io) : timer_(io) {}
  void Notify() { timer_.cancel(); }
  Awaitable<void> Wait(Deadline deadline) {
    timer_.expires_at(deadline);
    co_await timer_.async_wait(kAwait);
  }

 private:
  boost::asio::steady_timer timer_;
};

// Wakers may outlive the server; they share the hub.
class WakeHub {
 public:
  struct Waiter {
    std::atomic<bool> set{false};
    Signal* signal = nullptr;  // used on the server's thread only; null: nobody waits any more
  };

  boost::asio::io_context& io() { return io_; }

  // Any thread.
  void Wake(const std::shared_ptr<Waiter>& waiter) {
    if (waiter->set.exchange(true)) return;
    bool post = false;
    {
      MutexLock lock(&mutex_);
      if (stopped_) return;
      due_.push_back(waiter);
      post = !std::exchange(posted_, true);
    }
    if (post) boost::asio::post(io_, [this] { Deliver(); });
  }
  // After this call nothing is woken any more.
  void Stop() {
    MutexLock lock(&mutex_);
    stopped_ = true;
    due_.clear();
  }

 private:
  void Deliver() {
    {
      MutexLock lock(&mutex_);
      taken_.swap(due_);
      posted_ = false;
    }
    for (const auto& waiter : taken_) {
      if (waiter->signal != nullptr) waiter->signal->Notify();
    }
    taken_.clear();
  }

  boost::asio::io_context io_{1};
  Mutex mutex_;
  bool posted_ GYRE_GUARDED_BY(mutex_) = false, stopped_ GYRE_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Waiter>> due_ GYRE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Waiter>> taken_;  // on the server's thread
};

}  // namespace gyre::http
