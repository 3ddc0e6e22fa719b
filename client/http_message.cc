#include "client/http_message.h"

#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/core.hpp>
#include <utility>

#include "base/host_port.h"

namespace gyre {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

std::string Text(beast::string_view v) { return {v.data(), v.size()}; }

// The certificate is for another name, has expired, or was issued by nobody whom we trust.
std::string ExplainTls(const error_code& error) {
  const std::string text = error.message();
  if (text.find("certificate verify failed") == std::string::npos) return text;
  return text + "; --ca FILE trusts further certificates";
}

}  // namespace

BeastRequest MakeRequest(const Url& url, const HttpClientOptions& options, HttpRequest&& r) {
  BeastRequest out;
  out.version(11);
  out.method_string(r.method);
  const bool through = options.proxy.has_value() && !url.tls;
  out.target(through ? FormatUrl({url.tls, url.host, url.port, ""}) + r.target : r.target);
  const bool standard = url.port == (url.tls ? 443 : 80);
  const std::string host = FormatHostPort(url.host, url.port);
  out.set(http::field::host, standard ? host.substr(0, host.rfind(':')) : host);
  out.set(http::field::user_agent, "gyre");
  out.set(http::field::accept, "application/json, text/event-stream");
  if (!options.bearer.empty()) out.set(http::field::authorization, "Bearer " + options.bearer);
  if (through && !options.proxy->authorization.empty()) {
    out.set(http::field::proxy_authorization, options.proxy->authorization);
  }
  if (!r.body.empty()) {
    out.set(http::field::content_type, "application/json");
    out.body() = std::move(r.body);
  }
  for (const auto& [name, value] : r.headers) out.set(name, value);
  if (r.method != "GET") out.prepare_payload();
  return out;
}

BeastRequest MakeConnectRequest(const Url& url, const Proxy& proxy) {
  BeastRequest out;
  const std::string server = FormatHostPort(url.host, url.port);
  out.version(11);
  out.method(http::verb::connect);
  out.target(server);
  out.set(http::field::host, server);
  out.set(http::field::user_agent, "gyre");
  if (!proxy.authorization.empty()) out.set(http::field::proxy_authorization, proxy.authorization);
  return out;
}

HttpHead MakeHead(const http::fields& fields, unsigned code, std::string reason) {
  HttpHead out{.code = static_cast<int>(code),
               .reason = std::move(reason),
               .content_type = Text(fields[http::field::content_type]),
               .retry_after = Text(fields[http::field::retry_after])};
  for (const auto& field : fields) out.headers.emplace_back(Text(field.name_string()), Text(field.value()));
  return out;
}

bool IsClosed(const error_code& error) {
  return error == http::error::end_of_stream || error == http::error::partial_message || error == asio::error::eof ||
         error == asio::ssl::error::stream_truncated || error == asio::error::connection_reset ||
         error == asio::error::broken_pipe;
}

Status RequestError(const Url& url, const HttpClientOptions& options, const char* what, const error_code& error,
                    bool answered) {
  const std::string where = FormatUrl({url.tls, url.host, url.port, ""});
  if (error == beast::error::timeout) {
    return DeadlineExceeded("{}: {}: nothing came for {} s", where, what,
                            std::chrono::duration_cast<std::chrono::seconds>(options.idle_timeout).count());
  }
  if (error == http::error::body_limit || error == http::error::header_limit) {
    return ResourceExhausted("{}: the answer is too long: {}", where, error.message());
  }
  if (IsClosed(error)) {
    return Unavailable("{}: the server closed the connection {}", where,
                       answered ? "in the middle of its answer" : "without an answer");
  }
  if (error.category() == http::make_error_code(http::error::bad_version).category()) {
    return DataLoss("{}: the answer is not HTTP: {}", where, error.message());
  }
  const std::string way =
      options.proxy.has_value() ? fmt::format(" (proxy {})", FormatUrl(options.proxy->url)) : std::string();
  return Unavailable("{}{}: {}: {}", where, way, what, url.tls ? ExplainTls(error) : error.message());
}

}  // namespace gyre
