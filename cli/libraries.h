// What this program is built with.
#pragma once

#include <boost/json/object.hpp>

namespace gyre {

// The versions of the libraries that compute, send and store for it, by their names.
boost::json::object LibrariesJson();

}  // namespace gyre
