// A model's description in the cache, and the rules about it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/model_name.h"

namespace gyre {

struct CachedFile {
  std::string path;      // within the repository
  uint64_t size = 0;     // bytes; 0 = not known before it is here
  std::string sha256;    // the name of its bytes in the cache; "" = not known before it is here
  std::string git_sha1;  // as the hub tells it for small files; "" = not told

  bool operator==(const CachedFile&) const = default;
};

// One version of one model: some files of one commit, or one URL.
struct CachedModel {
  std::string id;        // of its folder in the cache
  std::string name;      // to be typed for it, without a revision: "ORG/REPO:Q4_K_M", "ORG/REPO", a URL
  std::string repo;      // "" = from a URL
  std::string revision;  // that was asked for: "main", a tag, ...
  std::string commit;    // what that meant
  std::string type;      // as FileChoice::type
  std::string open;      // as FileChoice::open
  std::vector<CachedFile> files;
  bool complete = false;
  int64_t pulled = 0;  // seconds since 1970, when the pull began
  // The cache computes these; the JSON does not have them.
  int64_t used = 0;         // when it was used last, seconds since 1970
  uint64_t bytes_here = 0;  // on the disk
  std::string path;         // what a model is opened by; "" = not complete

  uint64_t bytes() const;  // of all files
};

// To JSON and back. nullopt: the text does not describe a model.
std::string EncodeModel(const CachedModel& model);
std::optional<CachedModel> DecodeModel(const std::string& text);

// The name of the folder for one version of a model: readable, and different for different models.
std::string ModelId(const CachedModel& model, const std::string& url);

// For each of `models` the name that a user types to select it alone, with @COMMIT if a newer one of the same
// name and revision "main" has the short name.
std::vector<std::string> NamesToType(const std::vector<CachedModel>& models);

// Whether a name can select the model: the same repository or URL and, as far as the name has them, the same
// quantization or file and the same revision or beginning of a commit.
bool Matches(const CachedModel& model, const ModelReference& name);

// The one of `models` that a name selects: among those that match and are complete, if the name has no revision
// those of "main" first, by quantization as ChooseFiles, then the last pulled one. nullptr: none.
const CachedModel* FindModel(const std::vector<CachedModel>& models, const ModelReference& name);

// The `models` to remove so that all blobs are at most `limit` bytes: the longest unused first, and only those whose
// `in_use` is false. blobs: sizes by name, as they are on the disk or soon will be; `kept`: names of blobs that must
// stay. kResourceExhausted: it is not possible.
StatusOr<std::vector<size_t>> ModelsToRemove(const std::vector<CachedModel>& models, const std::vector<bool>& in_use,
                                             const std::map<std::string, uint64_t>& blobs,
                                             const std::vector<std::string>& kept, uint64_t limit);

// The name of a file's bytes in the cache: the hash, or a name of their own until it is known.
std::string BlobName(const CachedModel& model, const CachedFile& file);

}  // namespace gyre
