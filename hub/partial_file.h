// A file that is not whole yet: its bytes, a note beside it of what is there, and the hash of what is there without a
// gap. What the note says survives the end of the process at any moment.
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

// What a partial file is a part of. Ranges of two versions never mix.
struct PartialState {
  uint64_t size = 0;
  std::string identity;  // one line: a hash or an ETag; "" = nobody knows, and nothing is kept
  ByteRanges done;
};

// The note's bytes, and back; nullopt: they are not a note that this program wrote.
std::string EncodePartialState(const PartialState& state);
std::optional<PartialState> DecodePartialState(std::string_view text);

struct FileDigests {
  std::string sha256, git_sha1;  // lower-case hexadecimal; git_sha1 "" where the size was not known
};

// One thread calls it; another one within hashes, and writes the note. Holds a lock on the partial file, between
// processes.
class PartialFile {
 public:
  // Opens or creates. kFailedPrecondition: another process has it; kNotFound, kPermissionDenied, kResourceExhausted:
  // the folder.
  static StatusOr<std::unique_ptr<PartialFile>> Open(const std::string& path, Duration save_every);
  ~PartialFile();  // writes the note; a file without any byte, or of which nobody knows what it is, goes

  // Keeps what is there if it is a part of this file, else empties it; takes the space that the rest needs. Returns
  // what is there. identity "" or size nullopt: nothing is kept, now or later. kResourceExhausted: the disk is too
  // small.
  StatusOr<ByteRanges> Begin(std::optional<uint64_t> size, const std::string& identity);
  // kResourceExhausted: the disk is full.
  Status Write(uint64_t offset, std::string_view bytes);
  // `done` is there: hashes go on, and the note is written soon. An error of the other thread, as Write's.
  Status Advance(const ByteRanges& done);
  // All `size` bytes are there. Waits for the hashes at most until `until`; nullopt: they are not ready.
  StatusOr<std::optional<FileDigests>> Digests(uint64_t size, Deadline until);
  // Gives the file its name. It is on the disk then. Nothing may follow.
  Status Commit();
  // Removes the file and its note. Nothing may follow.
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
