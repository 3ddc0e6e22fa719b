// Conversations in files: {"model": NAME, "messages": [{"role", "content"}, ...]}; calls of tools and their
// results as OpenAI's API has them.
#pragma once

#include <string>

#include "base/status.h"
#include "boost/json/array.hpp"
#include "model/new_file.h"

namespace gyre {

// Errors as those of NewFile (model/new_file.h).
Status SaveConversation(const std::string& path, const NewFileOptions& options, const std::string& model,
                        const boost::json::array& messages);
// Also takes a bare array of messages. kNotFound; kInvalidArgument: what is wrong with the file.
StatusOr<boost::json::array> LoadConversation(const std::string& path);

}  // namespace gyre
