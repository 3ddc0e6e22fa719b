// The HTTP server: accepts connections and hands their requests to the routes. docs/http.md says how it is built.
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

// Thread-safe. One thread of its own runs all connections and routes.
class HttpServer {
 public:
  // What the routes refer to outlives it. kInvalidArgument: not an address, or a file of the options is wrong.
  // kNotFound: such a file can't be read. kUnavailable: the address can't be bound, with the reason.
  static StatusOr<std::unique_ptr<HttpServer>> Open(ServerOptions options, Router router);
  virtual ~HttpServer() = default;

  virtual const std::string& address() const = 0;  // HOST:PORT as bound
  virtual const std::string& url() const = 0;      // http://HOST:PORT or https://HOST:PORT
  // Requests whose head comes from now on get these routes; those that are there keep theirs.
  virtual void SetRouter(Router router) = 0;
  // Reads certificate, key and API keys again. An error: all stay as they were.
  virtual Status Reload() = 0;
  // No connection is accepted any more. On those that are there, routes that are not open to anyone answer 503.
  virtual void Drain() = 0;
  virtual ServerStats stats() const = 0;
  // Ends every connection and joins the thread. Idempotent.
  virtual void Stop() = 0;
};

// Whether the files, hosts and origins that the options name can be used, before minutes go into loading a model.
// Open's errors.
Status CheckSettings(const ServerOptions& options);

}  // namespace gyre::http
