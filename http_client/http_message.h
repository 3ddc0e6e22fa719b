// Requests, heads and errors of the HTTP client in Beast's terms. Only http_client.cc includes it.
#pragma once

#include <openssl/types.h>

#include <boost/beast/http.hpp>
#include <string>

#include "http_client/http_client.h"

namespace gyre {

using BeastRequest = boost::beast::http::request<boost::beast::http::string_body>;

// A request with all its headers; through a proxy without TLS it names the server too.
BeastRequest MakeRequest(const Url& url, const HttpClientOptions& options, HttpRequest&& request);
// The CONNECT request that asks a proxy for a connection to `url`.
BeastRequest MakeConnectRequest(const Url& url, const Proxy& proxy);
HttpHead MakeHead(const boost::beast::http::fields& fields, unsigned code, std::string reason);

// Whether the other end closed the connection.
bool IsClosed(const boost::system::error_code& error);
// Why TLS failed: who refuses whose certificate, and the flag that helps; "" = the error is of another kind.
std::string TlsCause(const ssl_st* tls, const HttpClientOptions& options, const boost::system::error_code& error);
// kFailedPrecondition: the certificate of `file` is no longer valid.
Status CheckNotEnded(const x509_st* certificate, const std::string& file);
// The status of a request that failed with `error` while `what` was under way. answered: its head has come. `cause`
// takes the place of the error's own words, where it is not empty.
Status RequestError(const Url& url, const HttpClientOptions& options, const char* what,
                    const boost::system::error_code& error, bool answered, const std::string& cause);

}  // namespace gyre
