// A server in the test's process, with routes that make its behaviour visible.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/http/server.h"
#include "tests/testing/http_client.h"

namespace gyre::testing {

// Waits for a condition that another thread makes true.
inline bool Soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 4000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return condition();
}

class HttpServerTest : public ::testing::Test {
 protected:
  // The options with which Serve starts; tests change them.
  http::ServerOptions options_{.address = "127.0.0.1:0"};

  void Serve() {
    options_.on_request = [this](const http::RequestRecord& record) {
      std::lock_guard lock(mutex_);
      records_.push_back(record);
    };
    auto server = http::HttpServer::Open(options_, Routes());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Stop();
  }
  std::vector<http::RequestRecord> records() {
    std::lock_guard lock(mutex_);
    return records_;
  }
  HttpAnswer Get(const std::string& target, const std::string& headers = "") {
    HttpClient client(server_->address());
    client.Request("GET", target, headers);
    return client.Answer();
  }
  // Calls every waker that /wait has left, and returns their number.
  size_t Wake() {
    std::lock_guard lock(mutex_);
    for (const auto& wake : wakers_) wake();
    return wakers_.size();
  }

  std::unique_ptr<http::HttpServer> server_;
  std::atomic<int> waiting_{0}, gone_{0}, written_{0};
  std::mutex mutex_;
  std::vector<http::RequestRecord> records_;

 private:
  using Exchange = http::Exchange;
  using Void = http::Awaitable<void>;

  // Answers with the method, path, query, and body as they arrived.
  static Void Echo(Exchange& exchange) {
    const http::HttpRequest& request = exchange.request();
    http::HttpResponse answer;
    answer.content_type = "text/plain";
    answer.body = request.method + " " + request.path;
    for (const auto& [name, value] : request.query) answer.body += " " + name + "=" + value;
    answer.body += " " + request.caller.name + " [" + request.body + "]";
    co_await exchange.Respond(std::move(answer));
  }
  // The parameters are ?n=PIECES&size=BYTES.
  static Void Stream(Exchange& exchange, HttpServerTest* test) {
    const std::string* n = exchange.request().Query("n");
    const std::string* size = exchange.request().Query("size");
    const int pieces = n == nullptr ? 3 : std::atoi(n->c_str());
    const size_t bytes = size == nullptr ? 4 : static_cast<size_t>(std::atoi(size->c_str()));
    http::HttpResponse head;
    head.content_type = "text/event-stream";
    head.body = "first;";
    co_await exchange.Begin(std::move(head));
    for (int i = 0; i < pieces; ++i) {
      std::string piece(bytes, static_cast<char>('a' + i % 26));
      const bool there = co_await exchange.Write(std::move(piece));
      if (!there) break;
      ++test->written_;
    }
    if (exchange.gone()) ++test->gone_;
  }
  // Streams a piece for each Wake, until the client is gone or ?n of them were sent.
  static Void Waits(Exchange& exchange, HttpServerTest* test) {
    const std::string* n = exchange.request().Query("n");
    int left = n == nullptr ? 1 : std::atoi(n->c_str());
    {
      std::lock_guard lock(test->mutex_);
      test->wakers_.push_back(exchange.waker());
    }
    ++test->waiting_;
    http::HttpResponse head;
    co_await exchange.Begin(std::move(head));
    while (left-- > 0) {
      const http::Wake woken = co_await exchange.Wait();
      if (woken == http::Wake::kGone) {
        ++test->gone_;
        co_return;
      }
      std::string piece = "x";
      co_await exchange.Write(std::move(piece));
    }
  }
  static Void Throws(Exchange& exchange) {
    if (exchange.request().Query("late") != nullptr) {
      http::HttpResponse head;
      head.body = "begun";
      co_await exchange.Begin(std::move(head));
    }
    throw std::runtime_error("a route's fault");
  }
  static Void Silent(Exchange&) { co_return; }
  static Void TimesOut(Exchange& exchange) {
    const Deadline soon = After(std::chrono::milliseconds(20));
    const http::Wake woken = co_await exchange.Wait(soon);
    http::HttpResponse answer;
    answer.body = woken == http::Wake::kTimeout ? "timeout" : "?";
    co_await exchange.Respond(std::move(answer));
  }

  http::Router Routes() {
    http::Router router;
    const auto add = [&router](std::string method, std::string path, http::Role role,
                               std::function<Void(Exchange&)> handler) {
      http::Route route;
      route.method = std::move(method);
      route.path = std::move(path);
      route.role = role;
      route.handler = std::move(handler);
      router.Add(std::move(route));
    };
    add("GET", "/open", http::Role::kAnyone, Echo);
    add("GET", "/echo", http::Role::kUser, Echo);
    add("POST", "/echo", http::Role::kUser, Echo);
    add("POST", "/admin", http::Role::kAdmin, Echo);
    add("GET", "/stream", http::Role::kUser, [this](Exchange& e) { return Stream(e, this); });
    add("GET", "/wait", http::Role::kUser, [this](Exchange& e) { return Waits(e, this); });
    add("GET", "/throw", http::Role::kUser, Throws);
    add("GET", "/silent", http::Role::kUser, Silent);
    add("GET", "/timeout", http::Role::kUser, TimesOut);
    return router;
  }

  std::vector<std::function<void()>> wakers_;
};

}  // namespace gyre::testing
