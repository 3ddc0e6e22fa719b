// Reads one HTTP/1.x request, strictly: what another server on the way could understand otherwise is refused. No I/O.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/http/api_error.h"
#include "coordinator/http/exchange.h"
#include "coordinator/http/server_options.h"

namespace gyre::http {

// Where a head ends.
struct HeadEnd {
  size_t size = 0;                // with its empty line; 0: it is not all there yet
  std::optional<ApiError> error;  // 400 or 431: the rest need not be waited for
};
// `input` begins at a request line. `seen`: bytes that an earlier call has looked at.
HeadEnd FindHeadEnd(std::string_view input, size_t seen, const ServerLimits& limits);

// 400, 431 or 501 for what a parser may understand in two ways: lines that go on in the next one, a line feed alone,
// control characters, space before a colon, two headers of Content-Length, Transfer-Encoding, Host, Authorization,
// Content-Type, Expect, Origin or X-Api-Key, both of the first two, any coding but chunked. `head` ends with its empty
// line.
std::optional<ApiError> CheckHead(std::string_view head, const ServerLimits& limits);

// Splits and decodes "/path?a=b&c". `authority` gets the host of a target in absolute form, else "". 400.
std::optional<ApiError> ReadTarget(std::string_view target, HttpRequest* out, std::string* authority);

class RequestParser {
 public:
  explicit RequestParser(const ServerLimits& limits);
  ~RequestParser();

  // The whole head. An error: 400, 413, 431, 501, 505; then the connection must end after the answer, but what was
  // understood of the request is there.
  std::optional<ApiError> Head(std::string_view head);
  HttpRequest& request() { return request_; }
  bool http_1_0() const { return http_1_0_; }
  bool keep_alive() const { return keep_alive_; }
  bool expects_continue() const { return expects_continue_; }
  // The body's bytes, as far as they are there. Sets how many of them were used. 400, 413.
  std::optional<ApiError> Body(std::string_view bytes, size_t* used);
  // The request ends here.
  bool done() const;
  size_t body_bytes() const;
  // Moves the body to request().body.
  void TakeBody();

 private:
  struct Impl;
  const ServerLimits limits_;
  const std::unique_ptr<Impl> impl_;
  HttpRequest request_;
  bool http_1_0_ = false, keep_alive_ = false, expects_continue_ = false;
};

}  // namespace gyre::http
