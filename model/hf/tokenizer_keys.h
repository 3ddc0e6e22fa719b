// Which keys of tokenizer.json and tokenizer_config.json have a meaning here (docs/models.md lists them).
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"

namespace gyre {

// A key of tokenizer.json that the tokenizers library's serialized form does not have: a later version of it may change
// the ids by it. kUnimplemented: it names the key. Steps of unknown types are left to their readers.
Status CheckTokenizerKeys(const boost::json::object& tokenizer);

// The keys of tokenizer_config.json that are neither used nor known to mean nothing. Folders carry keys of their own
// there, so they are named and refuse nothing.
std::vector<std::string> UnknownTokenizerSettings(const boost::json::object& settings);

}  // namespace gyre
