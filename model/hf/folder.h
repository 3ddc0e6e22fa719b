// A model as Hugging Face stores it: a folder with config.json, safetensors files and a tokenizer, in the names and
// words of GGUF.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/hf/config.h"
#include "model/hf/tokenizer_json.h"
#include "model/mapped_file.h"
#include "model/tensor_table.h"

namespace gyre {

// Immutable once it is open; views point into it.
struct HfFolder {
  HfArchitecture architecture;
  Metadata metadata;
  TensorTable tensors;  // experts one by one; queries and keys as the files have them
  std::optional<HfTokenizer> tokenizer;
  std::string tokenizer_note;  // why there is none
  std::string chat_template;
  std::string config;  // its text

  std::vector<std::shared_ptr<const MappedFile>> files;
  std::deque<std::vector<float>> owned_floats;
  std::deque<std::vector<uint16_t>> owned_halves;
};

// kNotFound: a file is missing, by name; kUnimplemented: a model type, tensor or number format that is not known;
// kDataLoss.
StatusOr<std::unique_ptr<HfFolder>> OpenHfFolder(const std::string& path);

// Writes it as one GGUF file. `progress` in bytes, on the calling thread.
Status ConvertToGguf(const HfFolder& folder, const std::string& out,
                     const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace gyre
