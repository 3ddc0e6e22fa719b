// One HTTP request and its answer, as a route sees them. The server implements it over a connection; tests
// implement it without one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "boost/asio/awaitable.hpp"

namespace gyre::http {

// Coroutines of the server's thread. gcc 12: a temporary with a destructor must not stand in an expression with
// co_await, nor as an argument of a coroutine; give it a name first.
template <typename T>
using Awaitable = boost::asio::awaitable<T>;

// Each role may do what the ones before it may.
enum class Role : uint8_t { kAnyone, kUser, kAdmin };

struct Caller {
  std::string name;  // of the API key; "" = without a key
  Role role = Role::kAnyone;
  uint64_t tenant = 0;  // callers of one key share a tenant; 0 = without a key
  bool loopback = false;
};

// Texts are as the client wrote them: any bytes.
struct HttpRequest {
  std::string id;            // unique; logs and the header x-request-id name the request by it
  std::string method, path;  // the path without its query, %XX decoded
  std::vector<std::pair<std::string, std::string>> query;    // decoded, in order
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  Caller caller;

  // nullptr: absent. The first header of that name.
  const std::string* Header(std::string_view name) const;
  const std::string* Query(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

enum class Wake : uint8_t { kWoken, kTimeout, kGone };

// Used on the server's thread only, except for the function that waker() returns. A route answers exactly once:
// Respond, or Begin and then any number of Writes. It returns soon after the client is gone. An exception that leaves a
// route before it answered becomes a 500.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;
  virtual Awaitable<void> Respond(HttpResponse response) = 0;
  // Starts an answer whose body comes in pieces; `head.body` is the first. The body ends when the route returns.
  virtual Awaitable<void> Begin(HttpResponse head) = 0;
  // Returns when the operating system has the bytes, so that a slow client slows the route down. False: the client
  // is gone.
  virtual Awaitable<bool> Write(std::string bytes) = 0;
  // Waits until the waker was called (also before this call: one call of it is enough for one Wait), the deadline, or
  // the client is gone.
  virtual Awaitable<Wake> Wait(Deadline deadline = kNoDeadline) = 0;
  virtual Awaitable<void> Pause(Duration duration) = 0;
  // May be called on any thread, also after the exchange has ended; must not block. Many calls cost as little as one.
  virtual std::function<void()> waker() = 0;
  virtual bool gone() const = 0;
  // An answer that has begun ends with an error of this HTTP status. A connection has sent its 200 already.
  virtual void Broke(int /*status*/) {}
  // The tokens that a request to the engine took, for the log and metrics. Generation calls it.
  virtual void CountTokens(uint64_t /*prompt*/, uint64_t /*generated*/) {}
};

}  // namespace gyre::http
