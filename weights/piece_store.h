// The pieces of one model that are on this machine: in the user's own files, or in incomplete files of the
// cache.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "weights/manifest.h"

namespace gyre {

// The state of a piece on this machine.
enum class PieceState : uint8_t {
  kAbsent = 0,
  kThere = 1,      // its hash was right when its sum was made
  kUnchecked = 2,  // it may be there: it is to be hashed before use
};

// A sum of a piece's bytes that takes little time, and with which later reads are compared. All zero: none is known.
using PieceSum = std::array<uint32_t, 4>;

// The state and the sum of each of a manifest's pieces, in a file that all processes of the machine map. Thread-safe.
class PieceStates {
 public:
  // Opens `path`, or makes it with `first` for each piece and no sums; "" = in memory only. A file for another root, or
  // of another size, is made anew. If `per_boot`, pieces that are kThere since before the machine's last start become
  // kUnchecked. kResourceExhausted, kPermissionDenied, kUnavailable.
  static StatusOr<std::unique_ptr<PieceStates>> Open(const std::string& path, const Hash256& root, size_t pieces,
                                                     PieceState first, bool per_boot);
  ~PieceStates();
  PieceStates(const PieceStates&) = delete;
  PieceStates& operator=(const PieceStates&) = delete;

  PieceState Get(uint32_t piece) const;
  void Set(uint32_t piece, PieceState state);
  PieceSum sum(uint32_t piece) const;
  // Sets kThere and the sum of the bytes whose hash was right.
  void SetThere(uint32_t piece, const PieceSum& sum);

 private:
  PieceStates() = default;
  uint32_t* SumAt(uint32_t piece) const;

  std::vector<uint64_t> memory_;
  size_t pieces_ = 0;
  uint8_t* bytes_ = nullptr;  // the states, then the sums
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
};

// Thread-safe.
class PieceStore {
 public:
  // A store over complete files. `states`: kThere or kUnchecked for each piece. `own`: the manifest was made of them.
  PieceStore(std::shared_ptr<const Manifest> manifest, ModelBytes files, std::unique_ptr<PieceStates> states,
             bool own = false);
  // A store over files of the cache, mapped from `folder`, that this process may write; it holds `lock`. A file that is
  // missing is made, and one of another size gets the right one: Check finds what they lack. Errors as FileError;
  // kInvalidArgument: something else than a file has its name.
  static StatusOr<std::shared_ptr<PieceStore>> OpenPartial(std::shared_ptr<const Manifest> manifest,
                                                           const std::string& folder,
                                                           std::unique_ptr<PieceStates> states,
                                                           std::shared_ptr<void> lock);
  ~PieceStore();

  const Manifest& manifest() const { return *manifest_; }
  const std::shared_ptr<const Manifest>& shared_manifest() const { return manifest_; }
  bool partial() const { return partial_; }
  PieceState state(uint32_t piece) const { return states_->Get(piece); }
  // REQUIRES: the piece is not absent. A view of the mapping; holes read as zeros.
  std::span<const std::byte> bytes(uint32_t piece) const;
  // Whether the piece's bytes are right now: they have the sum of the time when the hash was right, or the hash is
  // right. A wrong piece is absent from then on, or in a store of complete files unchecked, as it is another model's.
  bool Check(uint32_t piece);
  // Checks and writes a piece. kDataLoss: the bytes are not this piece's. kResourceExhausted: the disk is full.
  // kInternal: not a store of the cache.
  Status Put(uint32_t piece, std::span<const std::byte> bytes);
  // Reads a piece for a peer and checks it; the peer hashes it, so that a piece of complete files without a sum is
  // not hashed here. kNotFound: it is absent or wrong. kDataLoss: the file no longer has it.
  Status Read(uint32_t piece, std::vector<std::byte>* out);
  // Allocates the disk space that absent pieces need. kResourceExhausted.
  Status Reserve(const std::vector<uint32_t>& pieces);
  // Frees the disk space of those pieces that are not being read. No other process may use the files. Returns
  // the number of freed bytes.
  uint64_t Drop(const std::vector<uint32_t>& pieces);
  // kFailedPrecondition: this piece of the user's file is not the coordinator's, or is not what it was.
  Status Differs(uint32_t piece) const;
  // The path for OpenModel.
  std::string ModelPath() const;
  // The paths of its adapters. REQUIRES: partial().
  std::vector<std::string> AdapterPaths() const;

 private:
  // Whether these are the piece's bytes. Sets its state.
  bool CheckBytes(uint32_t piece, std::span<const std::byte> bytes);
  void SetWrong(uint32_t piece);

  const std::shared_ptr<const Manifest> manifest_;
  const ModelBytes files_;
  const std::unique_ptr<PieceStates> states_;
  const bool own_;
  std::string folder_;
  bool partial_ = false;
  std::vector<int> written_;  // descriptors for writing the files, only in a store of the cache
  std::shared_ptr<void> lock_;
  Mutex mutex_;
  std::unordered_map<uint32_t, int> read_ GYRE_GUARDED_BY(mutex_);  // how often each is being read by Read
};

}  // namespace gyre
