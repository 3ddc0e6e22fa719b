// A model in Hugging Face's format: a folder with config.json, safetensors files and a tokenizer, with the names and
// keys of GGUF.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/hf/config.h"
#include "model/hf/tokenizer_files.h"
#include "model/mapped_file.h"
#include "model/spec.h"
#include "model/tensor_table.h"

namespace gyre {

// Immutable once it is open; views point into it.
struct HfFolder {
  std::string path;
  HfArchitecture architecture;
  Metadata metadata;
  TensorTable tensors;  // experts one by one; queries and keys as the files have them
  HfVocabulary vocabulary;
  std::string config;     // its text
  int draft_tensors = 0;  // that were left out: of a block that predicts further tokens

  std::vector<std::shared_ptr<const MappedFile>> files;  // all that it was read from
  std::deque<std::vector<float>> owned_floats;
};

// kNotFound: a file is missing (the message names it); kUnimplemented: an unknown model type, tensor or number format;
// kDataLoss.
StatusOr<std::unique_ptr<HfFolder>> OpenHfFolder(const std::string& path);

// The spec of the model. Errors as those of SpecFromGguf (model/arch.h).
StatusOr<ModelSpec> SpecOf(const HfFolder& folder, int context = 0);

struct ConvertToGgufOptions {
  bool overwrite = false;  // an existing file is replaced; a file of the folder never is
  // Called with the bytes done and in total, on the calling thread. Its error ends the work; then no file is left.
  std::function<Status(uint64_t done, uint64_t total)> progress;
};
// The number of tensors that changed their type, as GGUF lacks it, by the type in the folder and in the file.
struct ConvertReport {
  std::map<std::pair<DType, DType>, int> changed;
};
// Writes the folder as one GGUF file. Errors as those of NewFile (model/new_file.h), and of OpenModel.
StatusOr<ConvertReport> ConvertToGguf(const HfFolder& folder, const std::string& out,
                                      const ConvertToGgufOptions& options);

}  // namespace gyre
