// What a server says about its errors, fit for one line of a terminal.
#pragma once

#include <string>

#include "boost/json/fwd.hpp"
#include "client/http_client.h"

namespace gyre {

// Without control characters, and not longer than 500 bytes.
std::string Printable(std::string text);

// {"error": {"message"}}, {"error": "..."}, {"message"} or {"detail"}, as it stands there; "" = none of them.
std::string ErrorText(const boost::json::value& v);
// The same of a body in JSON, or a body that is plain text; printable.
std::string ErrorText(const HttpHead& head, const std::string& body);

}  // namespace gyre
