// Conversations in files: {"model": NAME, "messages": [{"role", "content"}, ...]}.
#pragma once

#include <string>

#include "base/status.h"
#include "boost/json/array.hpp"

namespace gyre {

// kInvalidArgument: the file exists and `overwrite` is false; kUnavailable: it can't be written.
Status SaveConversation(const std::string& path, bool overwrite, const std::string& model,
                        const boost::json::array& messages);
// Also takes a bare array of messages. kNotFound; kInvalidArgument: what is wrong with the file.
StatusOr<boost::json::array> LoadConversation(const std::string& path);

}  // namespace gyre
