#include "http_client/http_message.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/core.hpp>
#include <ctime>
#include <utility>

#include "base/host_port.h"

namespace gyre {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

std::string Text(beast::string_view v) { return {v.data(), v.size()}; }

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

std::string TlsCause(const ssl_st* tls, const HttpClientOptions& options, const error_code& error) {
  const std::string text = error.message();
  const auto has = [&text](const char* words) { return text.find(words) != std::string::npos; };
  const long why = SSL_get_verify_result(tls);
  // A signature that does not fit leaves other words.
  if (why != X509_V_OK || has("certificate verify failed")) {
    if (why == X509_V_ERR_CERT_HAS_EXPIRED) return "the server's certificate has ended";
    // The check of the name leaves no reason of its own.
    if (why == X509_V_OK || why == X509_V_ERR_HOSTNAME_MISMATCH) return "the server's certificate is for another name";
    return fmt::format("certificate verify failed: {}; {} FILE trusts further certificates",
                       X509_verify_cert_error_string(why), options.ca_flag);
  }
  // With TLS 1.3 a server says only after the handshake what it thinks of this side's certificate.
  if (!has("alert") || (!has("certificate") && !has("unknown ca") && !has("handshake failure"))) return "";
  if (!options.cert_file.empty())
    return fmt::format("the server refuses the certificate {}: {}", options.cert_file, text);
  return options.cert_flag.empty()
             ? fmt::format("the server asks for a certificate of this side: {}", text)
             : fmt::format("the server asks for a certificate of this side ({}): {}", options.cert_flag, text);
}

Status CheckNotEnded(const x509_st* certificate, const std::string& file) {
  const ASN1_TIME* end = certificate != nullptr ? X509_get0_notAfter(certificate) : nullptr;
  if (end == nullptr || X509_cmp_current_time(end) > 0) return absl::OkStatus();
  std::tm at{};
  ASN1_TIME_to_tm(end, &at);
  return FailedPrecondition("{}: the certificate ended on {:04}-{:02}-{:02}", file, at.tm_year + 1900, at.tm_mon + 1,
                            at.tm_mday);
}

Status RequestError(const Url& url, const HttpClientOptions& options, const char* what, const error_code& error,
                    bool answered, const std::string& cause) {
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
  return Unavailable("{}{}: {}: {}", where, way, what, cause.empty() ? error.message() : cause);
}

}  // namespace gyre
