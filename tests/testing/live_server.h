// Every route of `gyre serve` on its own port, over a ring in the test's process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/http/request_counts.h"
#include "coordinator/http/routes.h"
#include "coordinator/http/server.h"
#include "runtime/runtime.h"
#include "tests/testing/http_client.h"

namespace gyre::testing {

class LiveServer {
 public:
  // The ring outlives it. If the server can't be opened, the test has failed.
  explicit LiveServer(Runtime& ring, http::ServerLimits limits = {}) : context_{.service = ring.service()} {
    context_.cluster = &ring.cluster();
    context_.engine_stats = [&ring] { return ring.engine().stats(); };
    context_.server_stats = [this] { return server_->stats(); };
    context_.request_counts = &counts_;
    context_.models = {"demo"};
    http::Router router;
    AddAllRoutes(router, context_);
    http::ServerOptions options{.address = "127.0.0.1:0", .limits = limits};
    options.on_request = [this](const http::RequestRecord& record) {
      counts_.Add(record);
      std::lock_guard lock(mutex_);
      records_.push_back(record);
    };
    auto server = http::HttpServer::Open(std::move(options), std::move(router));
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_ = *std::move(server);
  }
  ~LiveServer() { server_->Stop(); }

  http::HttpServer& server() { return *server_; }
  const std::string& address() const { return server_->address(); }
  // Asks one question on its own connection.
  HttpAnswer Ask(const std::string& method, const std::string& path, const std::string& body = "") const {
    HttpClient client(address());
    client.Request(method, path, body.empty() ? "" : "Content-Type: application/json\r\n", body);
    return client.Answer();
  }
  // The requests that have ended, in that order.
  std::vector<http::RequestRecord> records() {
    std::lock_guard lock(mutex_);
    return records_;
  }

 private:
  http::RequestCounts counts_;
  http::ApiContext context_;
  std::mutex mutex_;
  std::vector<http::RequestRecord> records_;
  std::unique_ptr<http::HttpServer> server_;
};

}  // namespace gyre::testing
