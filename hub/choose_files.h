// Which files of a repository make the model that a user named. Pure.
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

// Sums; 2^64 - 1 where they are more.
uint64_t TotalBytes(const std::vector<RepoFile>& files);

// GGUF wins over safetensors where a repository has both. Of GGUF files the one of name.quant or name.file is taken,
// else kDefaultQuant, else the one nearest to it by bits, which a note tells; with all its parts where it is split.
// Parts of multimodal models (mmproj) and importance matrices are left out with a note. Of safetensors: what Gyre reads
// of the repository's uppermost folder. kNotFound: nothing that can be run, or not what was asked for; the message
// lists what there is. kInvalidArgument: several files fit, and only the user can tell which. kFailedPrecondition:
// parts are missing.
StatusOr<FileChoice> ChooseFiles(const RepoListing& listing, const ModelReference& name);

// The parts of a split GGUF file that any of them names, in order: "a-00002-of-00003.gguf" gives three paths. Of any
// other path, itself.
std::vector<std::string> PartPaths(const std::string& path);

}  // namespace gyre
