// The cache of pieces and manifests on this machine, shared by all its processes.
//
//   FOLDER/weights/ROOT/manifest      an entry: the present pieces of one model, named by its manifest's root
//   FOLDER/weights/ROOT/have          a PieceState and a PieceSum for each
//   FOLDER/weights/ROOT/files/NAME    the model's files in their full size, with holes where pieces are absent
//   FOLDER/weights/ROOT/users/NAME    locked by each process that uses the entry; its time is that of the last use
//   FOLDER/weights/lock               held for a moment while an entry is made, taken into use or removed
//   FOLDER/manifests/KEY              the manifest of a file elsewhere, by path, size, times and inode
//   FOLDER/manifests/KEY.ROOT.have    which of its pieces were compared with the manifest ROOT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "weights/piece_store.h"

namespace gyre {

// Thread-safe, as it holds only a path.
class WeightCache {
 public:
  // folder: "" = none, and nothing is kept. limit: the bytes that all entries may take, 0 = none.
  WeightCache(std::string folder, uint64_t limit) : folder_(std::move(folder)), limit_(limit) {}
  const std::string& folder() const { return folder_; }

  // The entry's manifest if its header is here; nullopt: there is no such entry, or it is damaged.
  std::optional<Manifest> Find(const Hash256& root) const;
  // Opens the entry, and makes it if needed. `header`: all header pieces in succession; may be empty if Find found the
  // entry. An entry that is damaged is mended, or a new one takes its place. kDataLoss: the header is not the
  // manifest's, or it is empty and a new entry is to be made. kFailedPrecondition: a file system that machines share.
  // kResourceExhausted, kPermissionDenied, kUnavailable.
  StatusOr<std::shared_ptr<PieceStore>> Open(std::shared_ptr<const Manifest> manifest,
                                             std::span<const std::byte> header) const;

  // Allocates space for these absent pieces of `store`'s entry. Before, it removes unused entries, the longest unused
  // first, then pieces of this entry other than `keep` if nobody else uses it, until they fit under the limit and
  // on the disk. kResourceExhausted with the numbers.
  Status MakeRoom(PieceStore& store, const std::vector<uint32_t>& pieces, const std::vector<uint32_t>& keep) const;
  // The bytes that the entry `own` may take: the free ones, and those of itself and of unused entries; at most the
  // limit.
  uint64_t Capacity(const Hash256& own) const;

  // The manifest that was made of exactly these files, if they have not changed since.
  std::optional<Manifest> FindManifest(const ModelBytes& files) const;
  // Errors do no harm: the manifest would be made again.
  Status KeepManifest(const ModelBytes& files, const Manifest& manifest) const;
  // A store over the user's files. Earlier comparisons with this manifest are known, if they could be written
  // to the disk. `trusted`: the manifest was made from these files.
  StatusOr<std::shared_ptr<PieceStore>> OverFiles(std::shared_ptr<const Manifest> manifest, ModelBytes files,
                                                  bool trusted) const;

 private:
  struct Entry {
    std::string name;
    uint64_t bytes = 0;  // on the disk
    int64_t used = 0;    // nanoseconds since 1970
    size_t users = 0;    // processes that use it now
  };
  std::string Root() const { return folder_ + "/weights"; }
  Entry Look(const std::string& name) const;
  std::vector<Entry> List() const;
  Status Make(const Manifest& manifest, std::span<const std::byte> header) const;
  StatusOr<std::shared_ptr<PieceStore>> OpenEntry(std::shared_ptr<const Manifest> manifest) const;
  Status MakeRoomLocked(PieceStore& store, const std::vector<uint32_t>& pieces, const std::vector<uint32_t>& keep,
                        std::vector<std::string>* removed) const;

  const std::string folder_;
  const uint64_t limit_;
};

}  // namespace gyre
