// Error messages of a server, shortened to one line of a terminal.
#pragma once

#include <string>

#include "boost/json/fwd.hpp"
#include "http_client/http_client.h"

namespace gyre {

// The text without control characters, cut to 500 bytes.
std::string Printable(std::string text);

// The text in {"error": {"message"}}, {"error": "..."}, {"message"} or {"detail"}, unchanged; "" = none of them.
std::string ErrorText(const boost::json::value& v);
// The error text of a body in JSON, or of a body that is plain text; printable.
std::string ErrorText(const HttpHead& head, const std::string& body);

}  // namespace gyre
