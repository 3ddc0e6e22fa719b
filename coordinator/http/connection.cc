#include "coordinator/http/connection.h"

#include <exception>

#include "base/log_output.h"
#include "boost/asio/write.hpp"
#include "coordinator/http/admission.h"
#include "coordinator/http/connection_exchange.h"
#include "coordinator/http/request_log.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kBytesOfASecond = size_t{64} << 10;  // a body that comes more slowly than so many runs into its limit

bool IsLoopbackPeer(const Connection::Socket& socket) {
  error_code error;
  const auto peer = socket.remote_endpoint(error).address();
  if (error) return false;
  if (peer.is_v6() && peer.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, peer.to_v6()).is_loopback();
  }
  return peer.is_loopback();
}

}  // namespace

Connection::Connection(ServerCore& core, Socket socket)
    : core_(core), socket_(std::move(socket)), tls_context_(core.tls), signal_(core.hub->io()) {
  loopback_ = IsLoopbackPeer(socket_);
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  if (tls_context_ != nullptr) tls_.emplace(socket_, *tls_context_);
}

void Connection::Abort() {
  ended_ = broken_ = true;
  error_code ignored;
  socket_.close(ignored);
  signal_.Notify();
}

void Connection::CheckTime(Deadline now) {
  if (now < deadline_) return;
  deadline_ = kNoDeadline;
  // A client that is slow with its request may still read why it is refused.
  if (phase_ == Phase::kRead && !expired_ && !writing_) {
    expired_ = true;
    signal_.Notify();
  } else {
    Abort();
  }
}

std::optional<Deadline> Connection::idle_since() const {
  if (phase_ != Phase::kIdle) return std::nullopt;
  return idle_since_;
}

void Connection::StartRead() {
  if (reading_ || ended_ ||
      input_.size() >= std::max(core_.options.limits.ahead_bytes, core_.options.limits.head_bytes + 1))
    return;
  reading_ = true;
  auto done = [self = shared_from_this()](const error_code& error, size_t n) { self->OnRead(error, n); };
  if (tls_) {
    tls_->async_read_some(asio::buffer(chunk_), std::move(done));
  } else {
    socket_.async_read_some(asio::buffer(chunk_), std::move(done));
  }
}

void Connection::OnRead(const error_code& error, size_t n) {
  reading_ = false;
  if (phase_ != Phase::kEnd) input_.append(chunk_.data(), n);  // what comes behind the last answer is dropped
  if (error) {
    ended_ = true;
    // After a plain end the client may still read: some clients close their half once they have asked.
    if (error != asio::error::eof && error != asio::ssl::error::stream_truncated) broken_ = true;
  }
  signal_.Notify();
  StartRead();
}

Awaitable<bool> Connection::MoreInput(size_t have) {
  StartRead();
  while (input_.size() <= have && !ended_ && !expired_) co_await signal_.Wait(kNoDeadline);
  co_return input_.size() > have && !expired_;
}

Awaitable<bool> Connection::Handshake() {
  error_code error;
  auto result = co_await tls_->async_handshake(asio::ssl::stream_base::server, kAwait);
  error = std::get<0>(result);
  if (error) Log(LogLevel::kDebug, "http: a TLS handshake failed: {}", error.message());
  co_return !error;
}

Awaitable<void> Connection::Run() {
  const ServerLimits& limits = core_.options.limits;
  deadline_ = After(limits.head_time);
  bool fine = true;
  if (tls_) fine = co_await Handshake();
  if (!fine) {
    Abort();
    co_return;
  }
  phase_ = Phase::kIdle;
  // A new connection is expected to send a request.
  deadline_ = After(limits.head_time);
  while (fine) fine = co_await Serve();
  if (!broken_) co_await Linger();
  Abort();
}

Awaitable<void> Connection::Linger() {
  phase_ = Phase::kEnd;
  deadline_ = After(core_.options.limits.linger_time);
  input_.clear();
  input_.shrink_to_fit();
  if (tls_) {
    co_await tls_->async_shutdown(kAwait);
    co_return;
  }
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  // If it closed with input unread, the system would drop the answer.
  StartRead();
  while (!ended_) co_await signal_.Wait(kNoDeadline);
}

Awaitable<bool> Connection::ReadHead(RequestParser& parser, std::optional<ApiError>& error) {
  const ServerLimits& limits = core_.options.limits;
  size_t seen = 0;
  for (;;) {
    // An empty line before a request is allowed, and needs no state.
    while (seen == 0 && input_.compare(0, 2, "\r\n") == 0) input_.erase(0, 2);
    const bool only_cr = input_ == "\r";
    if (!input_.empty() && phase_ == Phase::kIdle) {
      phase_ = Phase::kRead;
      deadline_ = After(limits.head_time);
    }
    if (!input_.empty() && !only_cr) {
      const HeadEnd end = FindHeadEnd(input_, seen, limits);
      error = end.error;
      if (error) co_return true;
      if (end.size > 0) {
        error = parser.Head(std::string_view(input_).substr(0, end.size));
        input_.erase(0, end.size);
        co_return true;
      }
      seen = input_.size();
    }
    const bool more = co_await MoreInput(input_.size());
    if (more) continue;
    if (!expired_ || input_.empty() || ended_) co_return false;
    error = ApiError{.status = 408, .message = "the request did not come in time"};
    co_return true;
  }
}

Awaitable<std::optional<ApiError>> Connection::ReadBody(RequestParser& parser) {
  const ServerLimits& limits = core_.options.limits;
  const Deadline begin = Clock::now();
  std::optional<ApiError> error;
  for (;;) {
    size_t used = 0;
    const size_t before = parser.body_bytes();
    error = parser.Body(input_, &used);
    input_.erase(0, used);
    core_.body_bytes += parser.body_bytes() - before;
    body_held_ += parser.body_bytes() - before;
    if (!error && core_.body_bytes > limits.all_bodies_bytes) {
      error = ApiError{.status = 503, .message = "too many requests are being read; try again later", .retry_after = 1};
    }
    if (error || parser.done()) break;
    deadline_ = begin + limits.body_time + std::chrono::seconds(parser.body_bytes() / kBytesOfASecond);
    const bool more = co_await MoreInput(input_.size());
    if (more) continue;
    if (expired_) {
      error = ApiError{.status = 408, .message = "the request's body did not come in time"};
    } else {
      error = BadRequest("the request's body is cut");
    }
    break;
  }
  co_return error;
}

// A request that is being read or answered.
struct Connection::Count {
  explicit Count(Connection& c) : connection(c) { ++c.core_.active; }
  ~Count() {
    --connection.core_.active;
    connection.core_.body_bytes -= std::exchange(connection.body_held_, 0);
  }
  Connection& connection;
};

Awaitable<bool> Connection::Serve() {
  RequestParser parser(core_.options.limits);
  Admission admission;
  const bool there = co_await ReadHead(parser, admission.error);
  if (!there) co_return false;
  phase_ = Phase::kRead;
  const Deadline begin = Clock::now();
  ++core_.requests;
  const Count count{*this};
  const std::shared_ptr<const Router> router = core_.router();  // its routes stay until the answer has ended
  HttpRequest& request = parser.request();
  request.id = fmt::format("{}{:08x}", core_.id_prefix, ++core_.last_id);
  request.caller = Identify(core_.keys.get(), request, loopback_);
  if (!admission.error) admission = Admit(core_, *router, request);
  ConnectionExchange exchange(*this, parser.http_1_0(), parser.keep_alive() && !core_.draining);
  co_await ReadRest(parser, exchange, admission.error);
  exchange.set_request(std::move(request));
  phase_ = Phase::kAnswer;
  deadline_ = kNoDeadline;
  co_await Answer(exchange, admission);
  RequestRecord& record = exchange.record();
  record.id = exchange.request().id;
  record.method = exchange.request().method;
  record.path = exchange.request().path;
  if (admission.route != nullptr) record.route = admission.route->path;
  record.caller = exchange.request().caller.name;
  record.took = Clock::now() - begin;
  record.gone = closed_by_client();
  core_.bytes_sent += record.bytes;
  LogRequest(record);
  if (core_.options.on_request) core_.options.on_request(record);
  idle_since_ = Clock::now();
  phase_ = Phase::kIdle;
  deadline_ = idle_since_ + core_.options.limits.idle_time;
  if (input_.empty()) input_.shrink_to_fit();
  StartRead();
  co_return exchange.keep_alive() && !broken_;
}

Awaitable<void> Connection::ReadRest(RequestParser& parser, ConnectionExchange& exchange,
                                     std::optional<ApiError>& error) {
  if (error && !parser.done()) exchange.EndConnection();  // its body, if it has one, is not read
  if (!error && parser.expects_continue() && !parser.done() && input_.empty()) {
    const Parts go_on{"HTTP/1.1 100 Continue\r\n\r\n", {}, {}};
    co_await Send(go_on);
  }
  if (!error) {
    std::optional<ApiError> bad = co_await ReadBody(parser);
    if (bad) exchange.EndConnection();
    error = std::move(bad);
  }
  parser.TakeBody();
  const HttpRequest& request = parser.request();
  if (const std::string* origin = request.Header("origin");
      origin != nullptr && ClassifyOrigin(core_.origins, request) == OriginKind::kListed) {
    exchange.set_cors_origin(*origin);
  }
}

Awaitable<void> Connection::Answer(ConnectionExchange& exchange, const Admission& admission) {
  const Route* const route = admission.route;
  if (admission.error) {
    HttpResponse no = Render(*admission.error, StyleOf(exchange.request().path));
    if (!admission.allow.empty()) no.headers.emplace_back("allow", admission.allow);
    co_await exchange.Respond(std::move(no));
  } else if (IsPreflight(exchange.request())) {
    HttpResponse yes = PreflightAnswer(exchange.request());
    co_await exchange.Respond(std::move(yes));
  } else {
    co_await RunRoute(exchange, *route);
  }
}

Awaitable<void> Connection::RunRoute(ConnectionExchange& exchange, const Route& route) {
  std::string thrown;
  try {
    co_await route.handler(exchange);
  } catch (const std::exception& e) {
    thrown = e.what();
  } catch (...) {
    thrown = "an exception of no known type";
  }
  if (!thrown.empty()) {
    const std::string line = fmt::format("http {}: the route {} threw: {}", exchange.request().id, route.path, thrown);
    LogWith(LogLevel::kError, line, {{"request", exchange.request().id}});
  }
  if (!exchange.answered() && !broken_ && !(ended_ && thrown.empty())) {
    ApiError sorry{.status = 500, .message = "an error of the server; its log says more"};
    co_await RespondError(exchange, std::move(sorry));
  } else if (!thrown.empty()) {
    // The client must not take half an answer for a complete one.
    exchange.EndConnection();
    broken_ = true;
  }
  co_await exchange.Finish();
}

Awaitable<bool> Connection::SendTls(Parts parts) {
  // The parts become one TLS record if they fit, as each record costs a header and a tag.
  std::string joined;
  for (const std::string_view part : parts) joined += part;
  size_t sent = 0;
  while (sent < joined.size() && !broken_) {
    deadline_ = After(core_.options.limits.write_time);
    writing_ = true;
    const auto buffer = asio::buffer(joined.data() + sent, joined.size() - sent);
    const auto result = co_await tls_->async_write_some(buffer, kAwait);
    writing_ = false;
    if (std::get<0>(result)) broken_ = true;
    sent += std::get<1>(result);
  }
  deadline_ = kNoDeadline;
  co_return !broken_;
}

Awaitable<bool> Connection::Send(Parts parts) {
  if (tls_) {
    const bool sent = co_await SendTls(parts);
    co_return sent;
  }
  for (;;) {
    if (broken_) co_return false;
    std::array<asio::const_buffer, 3> buffers;
    size_t left = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      buffers[i] = asio::const_buffer(parts[i].data(), parts[i].size());
      left += parts[i].size();
    }
    error_code error;
    size_t n = left == 0 ? 0 : socket_.write_some(buffers, error);
    if (error && error != asio::error::would_block) {
      broken_ = ended_ = true;
      co_return false;
    }
    if (n == left) co_return true;
    for (std::string_view& part : parts) {
      const size_t taken = std::min(n, part.size());
      part.remove_prefix(taken);
      n -= taken;
    }
    deadline_ = After(core_.options.limits.write_time);
    writing_ = true;
    co_await socket_.async_wait(Socket::wait_write, kAwait);
    writing_ = false;
    deadline_ = kNoDeadline;
  }
}

}  // namespace gyre::http
