// Where pulled models lie, shared by all processes of this machine.
//
//   ROOT/blobs/SHA256             the bytes of files; beside them what Download leaves of unfinished ones
//   ROOT/models/ID/model.json     what a model is made of, and whether all of it is here
//   ROOT/models/ID/used           its time says when the model was used last
//   ROOT/models/ID/FOLDER/PATH    a link to a blob for each file, in a folder that a model is opened from
//   ROOT/lock, ROOT/locks/NAME    locks: of every change, of a model while it is used, of a blob while it is downloaded
//
// A model is known from the beginning of its pull on, so that nobody removes the blobs that are here already.
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

// XDG_CACHE_HOME/gyre, else HOME/.cache/gyre. (GYRE_CACHE is read where every flag is.) kFailedPrecondition: neither
// variable is set.
StatusOr<std::string> DefaultCacheRoot(const GetEnv& env);

// Thread-safe, as it holds nothing but a path. A cache that is not there yet is empty. Nothing but Begin, Finish,
// Remove, AddBlob and MakeRoom needs the right to write; without it they fail with kPermissionDenied.
class Cache {
 public:
  explicit Cache(std::string root) : root_(std::move(root)) {}
  const std::string& root() const { return root_; }

  // All models, those pulled last first. One of which a blob is missing is not complete.
  std::vector<CachedModel> List() const;
  // FindModel of List.
  std::optional<CachedModel> Find(const ModelReference& name) const;

  // Holds the model while somebody uses or pulls it, and notes the time. kUnavailable: it is being removed.
  StatusOr<std::unique_ptr<FileLock>> Use(const CachedModel& model) const;
  // Held by the one who downloads a blob. nullptr: another process does.
  StatusOr<std::unique_ptr<FileLock>> LockBlob(const std::string& blob) const;

  // Writes down what is to be pulled; returns it with the hashes that the cache knows from earlier pulls.
  StatusOr<CachedModel> Begin(CachedModel model);
  // The file's hash is known now: its bytes, which lie at BlobPath under the name they had until now, get it as name.
  Status AddBlob(CachedModel* model, size_t file, const std::string& sha256, uint64_t size);
  // All files are here: makes the links. Returns the model with its path.
  StatusOr<CachedModel> Finish(CachedModel model);

  std::string BlobPath(const std::string& blob) const { return root_ + "/blobs/" + blob; }
  bool HasBlob(const CachedFile& file) const;

  // kResourceExhausted: the disk has not enough free space for the files that are missing.
  Status CheckSpace(const CachedModel& model) const;

  // Removes a model and the blobs that no other one has. kFailedPrecondition: it is in use.
  Status Remove(const CachedModel& model);
  // Removes models that were not used for the longest time until the cache has room for all of `model` within `limit`
  // bytes. Returns those that it removed, with what each had on the disk. kResourceExhausted: there is no such room.
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
