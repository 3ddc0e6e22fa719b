// An Exchange without a connection, which keeps a route's answer.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "boost/asio/as_tuple.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "coordinator/http/exchange.h"

namespace gyre::http {

class FakeExchange : public Exchange {
 public:
  explicit FakeExchange(HttpRequest request) : request_(std::move(request)), signal_(std::make_shared<Signal>(io)) {}
  // Wakers may outlive the exchange, whose context ends here.
  ~FakeExchange() override {
    const std::lock_guard lock(signal_->mutex);
    signal_->timer.reset();
  }

  const HttpRequest& request() const override { return request_; }
  Awaitable<void> Respond(HttpResponse response) override {
    answer = std::move(response);
    ++answers;
    co_return;
  }
  Awaitable<void> Begin(HttpResponse head) override {
    answer = std::move(head);
    streamed = true;
    ++answers;
    co_return;
  }
  Awaitable<bool> Write(std::string bytes) override {
    while (blocked && !gone()) co_await Pause(std::chrono::milliseconds(1));
    if (gone()) co_return false;
    answer.body += bytes;
    ++writes;
    if (writes == leave_after_writes) Leave();
    co_return !gone();
  }
  Awaitable<Wake> Wait(Deadline deadline) override {
    const std::shared_ptr<Signal> signal = signal_;
    // A cancelled timer may belong to an earlier call of the waker.
    while (!signal->set.exchange(false) && !gone()) {
      if (deadline != kNoDeadline && Clock::now() >= deadline) co_return Wake::kTimeout;
      signal->timer->expires_at(deadline == kNoDeadline ? std::chrono::steady_clock::time_point::max() : deadline);
      const auto token = boost::asio::as_tuple(boost::asio::use_awaitable);
      co_await signal->timer->async_wait(token);
    }
    co_return gone() ? Wake::kGone : Wake::kWoken;
  }
  Awaitable<void> Pause(Duration duration) override {
    boost::asio::steady_timer timer(io, duration);
    const auto token = boost::asio::as_tuple(boost::asio::use_awaitable);
    co_await timer.async_wait(token);
  }
  std::function<void()> waker() override {
    return [signal = signal_] { Set(signal); };
  }
  bool gone() const override { return signal_->gone; }

  // The client goes away. Thread-safe.
  void Leave() {
    signal_->gone = true;
    Set(signal_);
  }

  boost::asio::io_context io;
  HttpResponse answer;
  std::atomic<bool> streamed{false};  // the answer has begun
  int answers = 0;
  std::atomic<int> writes{0};
  int leave_after_writes = -1;
  std::atomic<bool> blocked{false};  // the client takes nothing

 private:
  struct Signal {
    explicit Signal(boost::asio::io_context& context) : io(context), timer(std::in_place, context) {}
    boost::asio::io_context& io;
    std::mutex mutex;  // of the timer's life
    std::optional<boost::asio::steady_timer> timer;
    std::atomic<bool> set{false}, gone{false};
  };
  static void Set(const std::shared_ptr<Signal>& signal) {
    signal->set = true;
    const std::lock_guard lock(signal->mutex);
    if (!signal->timer) return;
    boost::asio::post(signal->io, [signal] {
      if (signal->timer) signal->timer->cancel();
    });
  }

  HttpRequest request_;
  const std::shared_ptr<Signal> signal_;
};

// Runs a route to its end and returns the exchange with the answer.
inline std::unique_ptr<FakeExchange> Ask(const std::function<Awaitable<void>(Exchange&)>& route, HttpRequest request,
                                         const std::function<void(FakeExchange&)>& prepare = {}) {
  auto exchange = std::make_unique<FakeExchange>(std::move(request));
  boost::asio::io_context& io = exchange->io;
  if (prepare) prepare(*exchange);
  std::exception_ptr thrown;
  boost::asio::co_spawn(io, route(*exchange), [&thrown](std::exception_ptr e) { thrown = e; });
  auto work = boost::asio::make_work_guard(io);
  work.reset();
  io.run();
  if (thrown) std::rethrow_exception(thrown);
  return exchange;
}

}  // namespace gyre::http
