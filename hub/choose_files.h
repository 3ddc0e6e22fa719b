// The choice of the files in a repository that make the model that a user named. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/hub_client.h"
#include "hub/model_name.h"

namespace gyre {

struct FileChoice {
  std::vector<RepoFile> files;     // in the order in which they are to be downloaded: the small ones first
  std::string open;                // the file to open, by its path in the repository; "" = the folder of them all
  std::string type;                // "Q4_K_M", or "safetensors"; "" = a GGUF file whose name tells no type
  std::vector<std::string> notes;  // sentences for the user: what was taken in place of what, what was left out
};

// The sum of the sizes; 2^64 - 1 if it is larger.
uint64_t TotalBytes(const std::vector<RepoFile>& files);

// If a repository has both, GGUF is chosen over safetensors. Of GGUF files the one of name.quant or name.file is taken,
// else kDefaultQuant, else the nearest to it by bits, with a note; if it is split, with all its parts.
// Parts of multimodal models (mmproj) and importance matrices are left out with a note. Of safetensors: the files in
// the repository's uppermost folder that Gyre reads. kNotFound: nothing that can be run, or not the named model; the
// message lists the files. kInvalidArgument: several files fit, and only the user can decide. kFailedPrecondition:
// parts are missing.
StatusOr<FileChoice> ChooseFiles(const RepoListing& listing, const ModelReference& name);

// The parts of a split GGUF file, in order, from the path of any of them: "a-00002-of-00003.gguf" gives three paths.
// Any other path gives itself.
std::vector<std::string> PartPaths(const std::string& path);

}  // namespace gyre
