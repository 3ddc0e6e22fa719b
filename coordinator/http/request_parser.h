// Reads one HTTP/1.x request strictly: text that another server on the way could understand differently is refused.
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
// `input` begins at a request line. `seen`: bytes that an earlier call has examined.
HeadEnd FindHeadEnd(std::string_view input, size_t seen, const ServerLimits& limits);

// 400, 431 or 501 for text that parsers may understand in two ways: continued lines, a line feed alone,
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

  // Parses the whole head. An error: 400, 413, 431, 501, 505; then the connection must end after the answer, but the
  // parsed part of the request is there.
  std::optional<ApiError> Head(std::string_view head);
  HttpRequest& request() { return request_; }
  bool http_1_0() const { return http_1_0_; }
  bool keep_alive() const { return keep_alive_; }
  bool expects_continue() const { return expects_continue_; }
  // Takes the body's bytes that are there. Sets the number of used ones. 400, 413, 431 (the trailer).
  std::optional<ApiError> Body(std::string_view bytes, size_t* used);
  // Whether the request is complete.
  bool done() const;
  size_t body_bytes() const;
  // Moves the body to request().body.
  void TakeBody();

 private:
  std::optional<ApiError> CheckFraming(std::string_view left) const;

  struct Impl;
  const ServerLimits limits_;
  const std::unique_ptr<Impl> impl_;
  size_t framed_ = 0;  // bytes of the body as it came, with its chunks' lines
  HttpRequest request_;
  bool http_1_0_ = false, keep_alive_ = false, expects_continue_ = false;
};

}  // namespace gyre::http
