// JSON lines on standard input, one case each.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace gyre {

// Hands over the lines that are not empty. The first error ends it, and names the line.
Status EachInputLine(const std::function<Status(const std::string& line)>& each);

}  // namespace gyre
