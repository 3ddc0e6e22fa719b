// One connection: its requests in succession, each answered by a route.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "coordinator/http/request_parser.h"
#include "coordinator/http/response_head.h"
#include "coordinator/http/server_core.h"

namespace gyre::http {

class ConnectionExchange;
struct Admission;

// Used on the server's thread only. Core outlives it. Held by shared_ptr.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  Connection(ServerCore& core, Socket socket);

  // Runs the whole life of the connection. The caller holds the connection until then.
  Awaitable<void> Run();
  // Ends it at once: every coroutine that waits for the client learns that it is gone.
  void Abort();
  // Acts on a time limit that has passed.
  void CheckTime(Deadline now);
  // The time when its last answer ended; nullopt while it reads or answers a request.
  std::optional<Deadline> idle_since() const;

 private:
  friend class ConnectionExchange;
  struct Count;
  enum class Phase : uint8_t { kHandshake, kIdle, kRead, kAnswer, kEnd };
  // The bytes to send are those of all parts, in order.
  using Parts = std::array<std::string_view, 3>;

  // A read is always under way, unless too much waits unread, so that the client's end is noticed in every phase.
  void StartRead();
  void OnRead(const boost::system::error_code& error, size_t n);
  // Waits until more than `have` bytes are in input_. False: the client is gone or too slow.
  Awaitable<bool> MoreInput(size_t have);

  Awaitable<bool> Handshake();
  // Passes the next request's head to the parser; false: there is no next request. An error is in `error`.
  Awaitable<bool> ReadHead(RequestParser& parser, std::optional<ApiError>& error);
  Awaitable<std::optional<ApiError>> ReadBody(RequestParser& parser);
  // Handles one request and its answer. False: the connection ends.
  Awaitable<bool> Serve();
  // Reads the body, if the request is admitted. An error is in `error`.
  Awaitable<void> ReadRest(RequestParser& parser, ConnectionExchange& exchange, std::optional<ApiError>& error);
  Awaitable<void> Answer(ConnectionExchange& exchange, const Admission& admission);
  Awaitable<void> RunRoute(ConnectionExchange& exchange, const Route& route);
  // Sends the end of the connection, and gives the client a moment to read the last answer.
  Awaitable<void> Linger();
  // Returns false if the client is gone.
  Awaitable<bool> Send(Parts parts);
  Awaitable<bool> SendTls(Parts parts);

  bool closed_by_client() const { return ended_ || broken_; }

  ServerCore& core_;
  Socket socket_;
  const std::shared_ptr<boost::asio::ssl::context> tls_context_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
  Signal signal_;  // new input, the end of the client, a waker, a time limit
  bool loopback_ = false;

  std::string input_;  // read and not yet used
  std::array<char, 4096> chunk_;
  bool reading_ = false;
  bool ended_ = false;    // nothing more comes from the client
  bool broken_ = false;   // nothing goes to it either
  bool expired_ = false;  // a time limit of reading has passed

  Phase phase_ = Phase::kHandshake;
  Deadline deadline_ = kNoDeadline;  // of the phase, or of a write
  bool writing_ = false;             // a write waits for the client
  size_t body_held_ = 0;             // bytes of the request's body, as counted in core_
  Deadline idle_since_ = Clock::now();
};

}  // namespace gyre::http
