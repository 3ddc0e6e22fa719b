// An incomplete file: its bytes, a note beside it that lists the present bytes, and the hash of the bytes before the
// first gap. The note is true even if the process ends at any moment.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "hub/byte_ranges.h"

namespace gyre {

// The version of the file to which partial bytes belong. Ranges of two versions never mix.
struct PartialState {
  uint64_t size = 0;
  std::string identity;  // one line: a hash or an ETag; "" = nobody knows, and nothing is kept
  ByteRanges done;
};

// The note's bytes, and back; nullopt: they are not a note of this program.
std::string EncodePartialState(const PartialState& state);
std::optional<PartialState> DecodePartialState(std::string_view text);

struct FileDigests {
  std::string sha256, git_sha1;  // lower-case hexadecimal; git_sha1 "" where the size was not known
};

// One thread calls it; an internal thread hashes and writes the note. Holds a lock on the partial file, between
// processes.
class PartialFile {
 public:
  // Opens or creates. kFailedPrecondition: another process has it; kNotFound, kPermissionDenied, kResourceExhausted:
  // the folder.
  static StatusOr<std::unique_ptr<PartialFile>> Open(const std::string& path, Duration save_every);
  ~PartialFile();  // writes the note; a file without any byte, or of which nobody knows what it is, goes

  // Keeps the present bytes if they belong to this file, else drops them; reserves space for the rest. Returns the
  // bytes that it keeps. identity "" or size nullopt: nothing is kept, now or later. kResourceExhausted: the disk is
  // too small.
  StatusOr<ByteRanges> Begin(std::optional<uint64_t> size, const std::string& identity);
  // kResourceExhausted: the disk is full.
  Status Write(uint64_t offset, std::string_view bytes);
  // The bytes of `done` are present: hashing goes on, and the note is written soon. Errors of the internal thread.
  Status Advance(const ByteRanges& done);
  // Call it when all `size` bytes are present. Waits for the hashes until `until` at most; nullopt: they are not ready.
  StatusOr<std::optional<FileDigests>> Digests(uint64_t size, Deadline until);
  // Renames the file to its final name, and syncs it. No call may follow.
  Status Commit();
  // Removes the file and its note. No call may follow.
  void Discard();

 private:
  PartialFile(std::string path, int fd, Duration save_every);
  void Run();
  void Stop();
  Status SaveState(const ByteRanges& done);
  Status Reserve(uint64_t size);

  const std::string path_;
  const int fd_;
  const Duration save_every_;
  std::optional<uint64_t> size_;
  std::string identity_;
  bool ended_ = false;

  Mutex mutex_;
  CondVar changed_;
  ByteRanges done_ GYRE_GUARDED_BY(mutex_);
  bool stop_ GYRE_GUARDED_BY(mutex_) = false;
  uint64_t whole_ GYRE_GUARDED_BY(mutex_) = UINT64_MAX;
  std::optional<FileDigests> digests_ GYRE_GUARDED_BY(mutex_);
  Status error_ GYRE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gyre
