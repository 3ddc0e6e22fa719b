// The files of a folder that make its tokenizer and its chat template.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/hf/tokenizer_json.h"
#include "model/weights.h"

namespace gyre {

struct HfVocabulary {
  std::optional<HfTokenizer> tokenizer;
  std::string tokenizer_note;  // why there is none
  ChatTemplates templates;
};

// Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json and
// the templates. `config`: config.json, for its end tokens; `rows`: of the embedding, 0 = unknown. kDataLoss: a file is
// broken, or its parts do not fit. Something unknown in tokenizer.json is no error, but a tokenizer_note.
StatusOr<HfVocabulary> ReadHfVocabulary(const std::filesystem::path& dir, const boost::json::object& config, int rows);

// The paths of these files, whether they exist or not.
std::vector<std::filesystem::path> HfVocabularyFiles(const std::filesystem::path& dir);

}  // namespace gyre
