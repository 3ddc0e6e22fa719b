// Settings of the HTTP server. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace gyre::http {

struct ServerLimits {
  size_t head_bytes = size_t{16} << 10;         // of a request line with its headers; more is 431
  size_t headers = 100;                         // their number; more is 431
  size_t body_bytes = size_t{8} << 20;          // of a request; more is 413
  size_t all_bodies_bytes = size_t{512} << 20;  // of all requests that are being read or answered; more is 503
  size_t connections = 4096;                    // at once; fewer where the process may open few descriptors
  // New connections that are served in a second; the next ones wait. So many of one address come at once, or as many as
  // there may be connections, and twice as many of all.
  size_t arrivals_at_once = 4096;
  double arrivals_per_second = 2000, address_arrivals_per_second = 500;     // of all, and of one address
  double handshakes_per_second = 400, address_handshakes_per_second = 100;  // in their place where there is TLS
  Duration arrival_time = std::chrono::seconds(5);                          // for such a wait
  size_t ahead_bytes = size_t{64} << 10;           // read of the next requests while one is answered
  Duration head_time = std::chrono::seconds(10);   // from a request's first byte to the end of its head
  Duration body_time = std::chrono::seconds(60);   // for its body, and a second more for each 64 KiB that came
  Duration idle_time = std::chrono::seconds(90);   // between two requests
  Duration write_time = std::chrono::seconds(30);  // without a byte that the client takes
  Duration linger_time = std::chrono::seconds(2);  // after the last answer, for the client to close
};

// The outcome of a request, for logs and metrics.
struct RequestRecord {
  std::string id, method, path;
  std::string route;   // the router's pattern; "" = none
  std::string caller;  // name of the API key; "" = without one
  int status = 0;      // 0: nothing was answered, as the client had gone
  Duration took{};
  uint64_t bytes = 0;  // sent
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  bool gone = false;  // the client went away before the end
};

struct ServerOptions {
  std::string address;             // HOST:PORT, port 0 for any
  std::string tls_cert, tls_key;   // PEM files; both, or "" for HTTP without TLS
  std::string api_keys;            // file; "" = see docs/security.md
  std::vector<std::string> hosts;  // further names that a request's Host may have
  std::vector<std::string> cors;   // origins of other servers' pages that may ask, as https://example.org
  ServerLimits limits;
  // Called after each request, on the server's thread; must not block. May be empty.
  std::function<void(const RequestRecord&)> on_request;
};

}  // namespace gyre::http
