// The shared data of the server and its connections. Used on the server's thread, except where it says otherwise.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "boost/asio/ssl/context.hpp"
#include "coordinator/http/api_keys.h"
#include "coordinator/http/origin.h"
#include "coordinator/http/router.h"
#include "coordinator/http/server.h"
#include "coordinator/http/wake_hub.h"

namespace gyre::http {

struct ServerCore {
  ServerCore(ServerOptions o, Router r)
      : options(std::move(o)), router_(std::make_shared<const Router>(std::move(r))) {}

  const ServerOptions options;
  OriginRules origins;                             // fixed before the first connection
  std::shared_ptr<const ApiKeys> keys;             // null: none were asked for
  std::shared_ptr<boost::asio::ssl::context> tls;  // of the next connections; null: no TLS
  const std::shared_ptr<WakeHub> hub = std::make_shared<WakeHub>();
  bool draining = false;
  size_t body_bytes = 0;  // of all requests at once
  std::string id_prefix;  // another one for each server
  uint64_t last_id = 0;
  // Other threads read these too.
  std::atomic<uint64_t> connections{0}, accepted{0}, refused{0}, active{0}, requests{0}, bytes_sent{0};

  // Any thread.
  std::shared_ptr<const Router> router() const {
    MutexLock lock(&mutex_);
    return router_;
  }
  void SetRouter(Router router) {
    auto next = std::make_shared<const Router>(std::move(router));
    MutexLock lock(&mutex_);
    router_.swap(next);
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const Router> router_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre::http
