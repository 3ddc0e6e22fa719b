// The HTTP server: accepts connections and hands their requests to the routes. docs/http.md describes its structure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "coordinator/http/router.h"
#include "coordinator/http/server_options.h"

namespace gyre::http {

struct ServerStats {
  uint64_t connections = 0, accepted = 0, refused = 0;  // open now; since the start; for want of room
  uint64_t active = 0, requests = 0;                    // requests without their whole answer; all
  uint64_t bytes_sent = 0;
};

// Thread-safe. Its own thread runs all connections and routes.
class HttpServer {
 public:
  // Objects that the routes refer to must outlive it. kInvalidArgument: no address, or a file of the options is wrong.
  // kNotFound: such a file can't be read. kUnavailable: the address can't be bound, with the reason.
  static StatusOr<std::unique_ptr<HttpServer>> Open(ServerOptions options, Router router);
  virtual ~HttpServer() = default;

  virtual const std::string& address() const = 0;  // HOST:PORT as bound
  virtual const std::string& url() const = 0;      // http://HOST:PORT or https://HOST:PORT
  // Requests whose head comes from now on get these routes; present requests keep theirs.
  virtual void SetRouter(Router router) = 0;
  // Reads certificate, key and API keys again. On an error all stay as they were.
  virtual Status Reload() = 0;
  // Accepts no more connections. On open ones, routes that require a role answer 503.
  virtual void Drain() = 0;
  virtual ServerStats stats() const = 0;
  // Ends every connection and joins the thread. Idempotent.
  virtual void Stop() = 0;
};

// Checks that the files, hosts and origins of the options can be used, before minutes are spent on loading a model.
// Errors are those of Open.
Status CheckSettings(const ServerOptions& options);

}  // namespace gyre::http
