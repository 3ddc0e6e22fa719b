// A request of a connection and its answer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/http/connection.h"

namespace gyre::http {

class ConnectionExchange final : public Exchange {
 public:
  // The connection outlives it.
  ConnectionExchange(Connection& connection, bool http_1_0, bool keep_alive)
      : connection_(connection),
        http_1_0_(http_1_0),
        keep_alive_(keep_alive),
        waiter_(std::make_shared<WakeHub::Waiter>()) {
    waiter_->signal = &connection.signal_;
  }
  ~ConnectionExchange() override { waiter_->signal = nullptr; }

  const HttpRequest& request() const override { return request_; }
  Awaitable<void> Respond(HttpResponse response) override;
  Awaitable<void> Begin(HttpResponse head) override;
  Awaitable<bool> Write(std::string bytes) override;
  Awaitable<Wake> Wait(Deadline deadline) override;
  Awaitable<void> Pause(Duration duration) override;
  std::function<void()> waker() override;
  bool gone() const override { return connection_.closed_by_client() || (streaming_ && head_only()); }
  void CountTokens(uint64_t prompt, uint64_t generated) override {
    record_.prompt_tokens += prompt;
    record_.generated_tokens += generated;
  }

  // The body of a streamed answer ends.
  Awaitable<void> Finish();
  void set_request(HttpRequest request) { request_ = std::move(request); }
  void set_cors_origin(std::string origin) { cors_origin_ = std::move(origin); }
  void EndConnection() { keep_alive_ = false; }
  bool answered() const { return record_.status != 0; }
  bool keep_alive() const { return keep_alive_; }
  RequestRecord& record() { return record_; }

 private:
  bool head_only() const { return request_.method == "HEAD"; }
  HeadExtras Extras() const;
  Awaitable<bool> Send(Connection::Parts parts);

  Connection& connection_;
  HttpRequest request_;
  const bool http_1_0_;
  bool keep_alive_;
  bool streaming_ = false, ended_ = false;
  std::string cors_origin_;
  RequestRecord record_;
  const std::shared_ptr<WakeHub::Waiter> waiter_;
};

}  // namespace gyre::http
