#include "coordinator/http/request_parser.h"

#include <algorithm>
#include <array>

#include "base/hex.h"
#include "boost/asio/buffer.hpp"
#include "boost/beast/http/parser.hpp"
#include "fmt/core.h"

namespace gyre::http {
namespace {

// The limits of a chunked body. A line with a chunk's size has at most kChunkLine bytes. All these lines together have
// at most kFramingBytes, and kFramingFactor times the bytes of the content.
constexpr size_t kChunkLine = 1024, kFramingBytes = size_t{64} << 10, kFramingFactor = 16;

namespace asio = boost::asio;
namespace beast = boost::beast;
using beast::error_code;

bool IsTokenChar(char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
bool IsToken(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenChar); }
bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\x7F'; }

bool EqualsIgnoringCase(std::string_view a, std::string_view lower) {
  return a.size() == lower.size() && std::equal(a.begin(), a.end(), lower.begin(), [](char x, char y) {
           return (x >= 'A' && x <= 'Z' ? x - 'A' + 'a' : x) == y;
         });
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::string_view ViewOf(beast::string_view text) { return {text.data(), text.size()}; }

std::optional<ApiError> CheckRequestLine(std::string_view line) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return BadRequest("the request line must be METHOD TARGET HTTP/1.1");
  }
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1),
                         version = line.substr(last + 1);
  if (!IsToken(method)) return BadRequest("the method is no token");
  const bool visible = std::all_of(target.begin(), target.end(), [](char c) { return c > ' ' && c < '\x7F'; });
  if (target.empty() || !visible) return BadRequest("the target has spaces or characters that are not ASCII");
  if (version == "HTTP/1.1" || version == "HTTP/1.0") return std::nullopt;
  if (version.substr(0, 5) == "HTTP/" && version.size() == 8) {
    return ApiError{.status = 505, .message = "expected HTTP/1.1"};
  }
  return BadRequest("the request line must be METHOD TARGET HTTP/1.1");
}

// The number of times that headers occur which say where a message ends, for whom it is, and who makes it.
struct Framing {
  int lengths = 0, codings = 0, hosts = 0;
  std::array<int, 5> others{};
};
constexpr std::array<std::string_view, 5> kOthers{"authorization", "content-type", "expect", "origin", "x-api-key"};

std::optional<ApiError> CheckHeaderLine(std::string_view line, Framing* framing) {
  if (line.front() == ' ' || line.front() == '\t') return BadRequest("a header goes on in the next line");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) {
    return BadRequest("a header line must be NAME: VALUE");
  }
  const std::string_view name = line.substr(0, colon), value = Trim(line.substr(colon + 1));
  const bool controls = std::any_of(value.begin(), value.end(), [](char c) { return IsControl(c) && c != '\t'; });
  if (controls) return BadRequest("a header's value has control characters");
  if (EqualsIgnoringCase(name, "content-length")) {
    ++framing->lengths;
    const bool digits = std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (value.empty() || !digits || value.size() > 18) return BadRequest("Content-Length is no number of bytes");
  }
  if (EqualsIgnoringCase(name, "transfer-encoding")) {
    ++framing->codings;
    if (!EqualsIgnoringCase(value, "chunked")) {
      return ApiError{.status = 501, .message = "the only Transfer-Encoding that is understood is chunked"};
    }
  }
  if (EqualsIgnoringCase(name, "host")) ++framing->hosts;
  for (size_t i = 0; i < kOthers.size(); ++i) framing->others[i] += EqualsIgnoringCase(name, kOthers[i]) ? 1 : 0;
  return std::nullopt;
}

// Returns false if a % has no two digits after it.
bool Decode(std::string_view text, bool plus_is_space, std::string* out) {
  out->clear();
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '+' && plus_is_space) {
      out->push_back(' ');
    } else if (text[at] != '%') {
      out->push_back(text[at]);
    } else {
      if (at + 2 >= text.size()) return false;
      const int high = HexValue(text[at + 1]), low = HexValue(text[at + 2]);
      if (high < 0 || low < 0) return false;
      out->push_back(static_cast<char>(high * 16 + low));
      at += 2;
    }
  }
  return true;
}

bool IsKnownMethod(std::string_view method) {
  constexpr std::array<std::string_view, 9> kKnown{"GET",    "HEAD",    "POST",  "PUT",    "PATCH",
                                                   "DELETE", "OPTIONS", "TRACE", "CONNECT"};
  return std::find(kKnown.begin(), kKnown.end(), method) != kKnown.end();
}

std::optional<ApiError> BodyError(const error_code& error, const ServerLimits& limits) {
  if (error == beast::http::error::body_limit) {
    return ApiError{.status = 413, .message = fmt::format("the body has more than {} bytes", limits.body_bytes)};
  }
  return BadRequest(fmt::format("the body can't be read: {}", error.message()));
}

}  // namespace

HeadEnd FindHeadEnd(std::string_view input, size_t seen, const ServerLimits& limits) {
  HeadEnd out;
  if (!input.empty() && !IsTokenChar(input[0])) {
    out.error = BadRequest(input[0] == '\x16' ? "this port speaks HTTP without TLS" : "the request line has no method");
    return out;
  }
  for (size_t at = input.find('\n', seen); at != std::string_view::npos; at = input.find('\n', at + 1)) {
    if (at == 0 || input[at - 1] != '\r') {
      out.error = BadRequest("a line must end with CR LF");
      return out;
    }
    if (at >= 3 && input[at - 2] == '\n') {
      out.size = at + 1;
      break;
    }
  }
  if ((out.size != 0 ? out.size : input.size()) > limits.head_bytes) {
    out.size = 0;
    out.error =
        ApiError{.status = 431, .message = fmt::format("the headers have more than {} bytes", limits.head_bytes)};
  }
  return out;
}

std::optional<ApiError> CheckHead(std::string_view head, const ServerLimits& limits) {
  Framing framing;
  size_t lines = 0;
  bool old = false;
  while (head.size() > 2) {
    const size_t end = head.find("\r\n");
    if (end == std::string_view::npos) return BadRequest("a line must end with CR LF");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    if (line.find('\r') != std::string_view::npos) return BadRequest("a line must end with CR LF");
    if (lines++ == 0) {
      if (auto error = CheckRequestLine(line)) return error;
      old = line.back() == '0';
      continue;
    }
    if (line.empty()) return BadRequest("the head ends too early");
    if (lines > limits.headers + 1) {
      return ApiError{.status = 431, .message = fmt::format("more than {} headers", limits.headers)};
    }
    if (auto error = CheckHeaderLine(line, &framing)) return error;
  }
  if (framing.lengths > 1) return BadRequest("Content-Length stands twice");
  if (framing.codings > 1) return BadRequest("Transfer-Encoding stands twice");
  if (framing.lengths > 0 && framing.codings > 0) return BadRequest("both Content-Length and Transfer-Encoding stand");
  if (framing.hosts > 1) return BadRequest("Host stands twice");
  for (size_t i = 0; i < kOthers.size(); ++i) {
    if (framing.others[i] > 1) return BadRequest(fmt::format("the header {} stands twice", kOthers[i]));
  }
  if (framing.hosts == 0 && !old) return BadRequest("the header Host is missing");
  if (framing.codings > 0 && old) return BadRequest("HTTP/1.0 has no Transfer-Encoding");
  return std::nullopt;
}

std::optional<ApiError> ReadTarget(std::string_view target, HttpRequest* out, std::string* authority) {
  authority->clear();
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() < scheme.size() || !EqualsIgnoringCase(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    *authority = std::string(target.substr(0, target.find_first_of("/?")));
    if (authority->empty()) return BadRequest("the target has no host");
    target.remove_prefix(authority->size());
    if (target.empty() || target.front() == '?') return BadRequest("the target has no path");
    break;
  }
  if (target == "*") {
    out->path = "*";
    return std::nullopt;
  }
  if (target.empty() || target.front() != '/' || target.find('#') != std::string_view::npos) {
    return BadRequest("the target must be a path");
  }
  const size_t mark = target.find('?');
  if (!Decode(target.substr(0, mark), false, &out->path))
    return BadRequest("a % in the path has no two digits behind it");
  if (std::any_of(out->path.begin(), out->path.end(), IsControl)) return BadRequest("the path has control characters");
  std::string_view rest = mark == std::string_view::npos ? std::string_view() : target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view field = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), field.size() + 1));
    if (field.empty()) continue;
    const size_t equals = field.find('=');
    std::string name, value;
    const std::string_view right = equals == std::string_view::npos ? std::string_view() : field.substr(equals + 1);
    if (!Decode(field.substr(0, equals), true, &name) || !Decode(right, true, &value)) {
      return BadRequest("a % in the query has no two digits behind it");
    }
    out->query.emplace_back(std::move(name), std::move(value));
  }
  return std::nullopt;
}

struct RequestParser::Impl {
  // The memory grows with the bytes that came, so that a client's announced size costs nothing.
  struct GrowingBody {
    using value_type = std::string;
    class reader {
     public:
      template <bool kRequest, class Fields>
      reader(beast::http::header<kRequest, Fields>&, value_type& body) : body_(body) {}
      void init(const boost::optional<uint64_t>&, error_code& error) { error = {}; }
      template <class Buffers>
      size_t put(const Buffers& buffers, error_code& error) {
        error = {};
        size_t used = 0;
        for (auto it = asio::buffer_sequence_begin(buffers); it != asio::buffer_sequence_end(buffers); ++it) {
          const asio::const_buffer piece(*it);
          body_.append(static_cast<const char*>(piece.data()), piece.size());
          used += piece.size();
        }
        return used;
      }
      void finish(error_code& error) { error = {}; }

     private:
      value_type& body_;
    };
  };

  beast::http::request_parser<GrowingBody> parser;
};

RequestParser::RequestParser(const ServerLimits& limits) : limits_(limits), impl_(std::make_unique<Impl>()) {
  // The line with a chunk's size, and trailers, count as head.
  impl_->parser.header_limit(static_cast<uint32_t>(limits.head_bytes) + 1024);
  impl_->parser.body_limit(limits.body_bytes);
}
RequestParser::~RequestParser() = default;

std::optional<ApiError> RequestParser::Head(std::string_view head) {
  if (auto error = CheckHead(head, limits_)) return error;
  error_code error;
  impl_->parser.put(asio::buffer(head.data(), head.size()), error);
  const bool too_long = error == beast::http::error::body_limit;
  if (error && !too_long) return BadRequest(fmt::format("the request can't be read: {}", error.message()));
  const auto& message = impl_->parser.get();
  request_.method = std::string(ViewOf(message.method_string()));
  http_1_0_ = message.version() == 10;
  keep_alive_ = !too_long && impl_->parser.keep_alive();
  for (const auto& field : message) {
    std::string name(ViewOf(field.name_string()));
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    request_.headers.emplace_back(std::move(name), std::string(ViewOf(field.value())));
  }
  std::string authority;
  if (auto bad = ReadTarget(ViewOf(message.target()), &request_, &authority)) return bad;
  const std::string* host = request_.Header("host");
  if (!authority.empty() && (host == nullptr || *host != authority)) return BadRequest("target and Host differ");
  if (!IsKnownMethod(request_.method)) {
    return ApiError{.status = 501, .message = fmt::format("the method {} is not known", request_.method)};
  }
  if (request_.path == "*" && request_.method != "OPTIONS") return BadRequest("the target must be a path");
  if (too_long) return BodyError(error, limits_);
  if (const std::string* expect = request_.Header("expect")) {
    expects_continue_ = EqualsIgnoringCase(*expect, "100-continue") && !http_1_0_;
    if (!expects_continue_)
      return ApiError{.status = 417, .message = "the only Expect that is understood is 100-continue"};
  }
  return std::nullopt;
}

std::optional<ApiError> RequestParser::Body(std::string_view bytes, size_t* used) {
  *used = 0;
  while (!done() && *used < bytes.size()) {
    error_code error;
    // The parser takes a trailer as a whole, so it never sees more of one than may be there.
    const std::string_view next = bytes.substr(*used, impl_->parser.chunked() ? limits_.head_bytes : bytes.size());
    const size_t n = impl_->parser.put(asio::buffer(next.data(), next.size()), error);
    *used += n;
    framed_ += n;
    if (error && error != beast::http::error::need_more) return BodyError(error, limits_);
    if (n == 0) break;
  }
  return done() ? std::nullopt : CheckFraming(bytes.substr(*used));
}

// What the parser leaves is a chunk's line, or the trailer with the last chunk's line, that is not all there yet.
std::optional<ApiError> RequestParser::CheckFraming(std::string_view left) const {
  if (!impl_->parser.chunked()) return std::nullopt;
  const size_t line = std::min(left.find('\n'), left.size());
  if (const size_t most = std::min(kChunkLine, limits_.head_bytes); line > most) {
    return BadRequest(fmt::format("the line with a chunk's size has more than {} bytes", most));
  }
  if (left.size() > limits_.head_bytes) {
    return ApiError{.status = 431, .message = fmt::format("the trailer has more than {} bytes", limits_.head_bytes)};
  }
  if (framed_ > kFramingBytes + kFramingFactor * body_bytes()) {
    return BadRequest("the body's chunks have far more bytes around them than in them");
  }
  return std::nullopt;
}

bool RequestParser::done() const { return impl_->parser.is_done(); }
size_t RequestParser::body_bytes() const { return impl_->parser.get().body().size(); }
void RequestParser::TakeBody() { request_.body = std::move(impl_->parser.get().body()); }

}  // namespace gyre::http
