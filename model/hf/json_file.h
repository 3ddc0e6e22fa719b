// Reads files of a folder in Hugging Face's format.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"
#include "boost/json/object.hpp"

namespace gyre {

// kNotFound: the message names the file.
StatusOr<std::string> ReadTextFile(const std::filesystem::path& path);
// kDataLoss: the text is no JSON object; the message names the file and the byte.
StatusOr<boost::json::object> ParseJsonFile(const std::string& text, const std::filesystem::path& path);
StatusOr<boost::json::object> ReadJsonFile(const std::filesystem::path& path);

}  // namespace gyre
