// Requests, heads and errors of the HTTP client in Beast's terms. Only http_client.cc includes it.
#pragma once

#include <boost/beast/http.hpp>
#include <string>

#include "client/http_client.h"

namespace gyre {

using BeastRequest = boost::beast::http::request<boost::beast::http::string_body>;

// A request with all its headers; through a proxy without TLS it names the server too.
BeastRequest MakeRequest(const Url& url, const HttpClientOptions& options, HttpRequest&& request);
// The CONNECT request that asks a proxy for a connection to `url`.
BeastRequest MakeConnectRequest(const Url& url, const Proxy& proxy);
HttpHead MakeHead(const boost::beast::http::fields& fields, unsigned code, std::string reason);

// Whether the other end closed the connection.
bool IsClosed(const boost::system::error_code& error);
// The status of a request that failed with `error` during `what`. answered: the head of the answer has come.
Status RequestError(const Url& url, const HttpClientOptions& options, const char* what,
                    const boost::system::error_code& error, bool answered);

}  // namespace gyre
