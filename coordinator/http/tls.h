// The server's TLS context.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "boost/asio/ssl/context.hpp"

namespace gyre::http {

// TLS 1.2 or newer, HTTP/1.1 by ALPN. `cert`: a chain in PEM, the server's own first; `key`: its private key in PEM.
// kNotFound: a file can't be read. kInvalidArgument: it is no certificate or key, or they don't belong together.
StatusOr<std::shared_ptr<boost::asio::ssl::context>> LoadTls(const std::string& cert, const std::string& key);

}  // namespace gyre::http
