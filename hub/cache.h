// The cache of pulled models, shared by all processes of this machine.
//
//   ROOT/blobs/SHA256             the bytes of files; beside them the partial files of Download
//   ROOT/models/ID/model.json     the description of the model, and whether it is complete
//   ROOT/models/ID/used           its time is the last use of the model
//   ROOT/models/ID/FOLDER/PATH    a link to a blob for each file, in the folder from which the model is opened
//   ROOT/lock, ROOT/locks/NAME    locks: of each change, of a model in use, of a blob during its download
//
// A model is in the cache from the beginning of its pull on, so that nobody removes the blobs that are here already.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cached_model.h"
#include "hub/file_lock.h"
#include "hub/hub_client.h"

namespace gyre {

// XDG_CACHE_HOME/gyre, else HOME/.cache/gyre. (GYRE_CACHE is read with all other flags.) kFailedPrecondition: neither
// variable is set.
StatusOr<std::string> DefaultCacheRoot(const GetEnv& env);

// Thread-safe, as it holds only a path. A cache whose folder does not exist is empty. Only Begin, Finish, Remove,
// AddBlob and MakeRoom need the right to write; without it they fail with kPermissionDenied.
class Cache {
 public:
  explicit Cache(std::string root) : root_(std::move(root)) {}
  const std::string& root() const { return root_; }

  // All models, the last pulled first. A model with a missing blob is not complete.
  std::vector<CachedModel> List() const;
  // FindModel of List.
  std::optional<CachedModel> Find(const ModelReference& name) const;

  // Locks the model while it is used or pulled, and records the time. kUnavailable: it is being removed.
  StatusOr<std::unique_ptr<FileLock>> Use(const CachedModel& model) const;
  // The lock for the download of a blob. nullptr: another process has it.
  StatusOr<std::unique_ptr<FileLock>> LockBlob(const std::string& blob) const;

  // Records a model before its pull; returns it with the hashes that the cache knows from earlier pulls.
  StatusOr<CachedModel> Begin(CachedModel model);
  // Called once the file's hash is known: the bytes at BlobPath, which had another name until now, are named by it.
  Status AddBlob(CachedModel* model, size_t file, const std::string& sha256, uint64_t size);
  // Called when all files are here: makes the links. Returns the model with its path.
  StatusOr<CachedModel> Finish(CachedModel model);

  std::string BlobPath(const std::string& blob) const { return root_ + "/blobs/" + blob; }
  bool HasBlob(const CachedFile& file) const;

  // kResourceExhausted: the disk has not enough free space for the files that are missing.
  Status CheckSpace(const CachedModel& model) const;

  // Removes a model and the blobs that no other model has. kFailedPrecondition: it is in use.
  Status Remove(const CachedModel& model);
  // Removes models, the longest unused first, until the cache has room for all of `model` within `limit` bytes. Returns
  // the removed models and the bytes of each on the disk. kResourceExhausted: there is not enough room.
  StatusOr<std::vector<CachedModel>> MakeRoom(const CachedModel& model, uint64_t limit);

 private:
  Status MakeFolders() const;
  StatusOr<std::unique_ptr<FileLock>> LockAll() const;
  std::string Folder(const CachedModel& model) const { return root_ + "/models/" + model.id; }
  std::string OpenPath(const CachedModel& model) const;
  std::string LockPath(const std::string& name) const { return root_ + "/locks/" + name; }
  std::optional<CachedModel> Read(const std::string& id) const;
  Status Write(const CachedModel& model) const;
  Status Link(const CachedModel& model, const CachedFile& file) const;
  void RemoveLocked(const CachedModel& model) const;
  void Sweep() const;
  std::map<std::string, uint64_t> Blobs() const;

  const std::string root_;
};

}  // namespace gyre
