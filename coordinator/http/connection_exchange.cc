#include "coordinator/http/connection_exchange.h"

#include <charconv>

namespace gyre::http {

HeadExtras ConnectionExchange::Extras() const {
  HeadExtras extras;
  extras.id = request_.id;
  extras.cors_origin = cors_origin_;
  extras.close = !keep_alive_;
  extras.keep_alive_1_0 = keep_alive_ && http_1_0_;
  return extras;
}

Awaitable<bool> ConnectionExchange::Send(Connection::Parts parts) {
  for (const std::string_view part : parts) record_.bytes += part.size();
  return connection_.Send(parts);
}

Awaitable<void> ConnectionExchange::Respond(HttpResponse response) {
  if (answered()) co_return;
  record_.status = response.status;
  ended_ = true;
  HeadExtras extras = Extras();
  const bool has_body = HasBody(response.status);
  if (has_body) extras.length = response.body.size();
  const std::string head = FormatResponseHead(response, extras);
  const Connection::Parts parts{
      head, has_body && !head_only() ? std::string_view(response.body) : std::string_view(), {}};
  const bool sent = co_await Send(parts);
  if (!sent) keep_alive_ = false;
}

Awaitable<void> ConnectionExchange::Begin(HttpResponse response) {
  if (answered()) co_return;
  record_.status = response.status;
  streaming_ = true;
  if (http_1_0_) keep_alive_ = false;  // the body's end is the connection's
  HeadExtras extras = Extras();
  extras.chunked = !http_1_0_;
  const std::string head = FormatResponseHead(response, extras);
  Connection::Parts parts{head, {}, {}};
  std::string size;
  if (!response.body.empty() && !head_only()) {
    if (!http_1_0_) {
      size = fmt::format("{:x}\r\n", response.body.size());
      response.body += "\r\n";
    }
    size.insert(0, head);
    parts = {size, response.body, {}};
  }
  const bool sent = co_await Send(parts);
  if (!sent) keep_alive_ = false;
}

Awaitable<bool> ConnectionExchange::Write(std::string bytes) {
  if (!streaming_ || ended_ || gone()) co_return false;
  if (bytes.empty()) co_return true;
  char size[24];
  size_t n = 0;
  if (!http_1_0_) {
    char* const end = std::to_chars(size, size + 20, bytes.size(), 16).ptr;
    end[0] = '\r';
    end[1] = '\n';
    n = static_cast<size_t>(end + 2 - size);
  }
  const Connection::Parts parts{std::string_view(size, n), bytes, n != 0 ? "\r\n" : std::string_view()};
  const bool sent = co_await Send(parts);
  if (!sent) keep_alive_ = false;
  co_return sent;
}

Awaitable<void> ConnectionExchange::Finish() {
  if (!streaming_ || ended_) co_return;
  ended_ = true;
  if (http_1_0_ || head_only()) co_return;
  const Connection::Parts parts{"0\r\n\r\n", {}, {}};
  const bool sent = co_await Send(parts);
  if (!sent) keep_alive_ = false;
}

Awaitable<Wake> ConnectionExchange::Wait(Deadline deadline) {
  for (;;) {
    if (gone()) co_return Wake::kGone;
    if (waiter_->set.exchange(false)) co_return Wake::kWoken;
    if (deadline != kNoDeadline && Clock::now() >= deadline) co_return Wake::kTimeout;
    co_await connection_.signal_.Wait(deadline);
  }
}

Awaitable<void> ConnectionExchange::Pause(Duration duration) {
  boost::asio::steady_timer timer(connection_.core_.hub->io(), duration);
  co_await timer.async_wait(kAwait);
}

std::function<void()> ConnectionExchange::waker() {
  return [hub = connection_.core_.hub, waiter = waiter_] { hub->Wake(waiter); };
}

}  // namespace gyre::http
