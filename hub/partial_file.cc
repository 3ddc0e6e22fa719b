#include "hub/partial_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/files.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "hub/download.h"

namespace gyre {
namespace {

constexpr size_t kLongestState = size_t{4} << 20;  // bytes of a note
constexpr size_t kHashPiece = size_t{1} << 20;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

std::string Gigabytes(uint64_t bytes) { return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9); }

Status NoSpace(const std::string& path, uint64_t needed, uint64_t free) {
  return ResourceExhausted("{}: the disk has {} free, and {} more are needed; free some space or use another folder",
                           FolderOf(path), Gigabytes(free), Gigabytes(needed));
}

// A lock that ends with the process. nullopt: another process has it, or its file was removed meanwhile.
StatusOr<std::optional<int>> OpenLocked(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0644);
  if (fd < 0) return FileError(path, "can't open it", errno);
  struct stat opened {
  }, named{};
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
      opened.st_ino == named.st_ino && opened.st_dev == named.st_dev) {
    return std::optional<int>(fd);
  }
  close(fd);
  return std::optional<int>();
}

void RemoveNotes(const std::string& path) {
  unlink(StatePath(path).c_str());
  unlink((StatePath(path) + ".new").c_str());
}

Status WriteAll(const std::string& path, int fd, uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FileError(path, "can't write", n == 0 ? ENOSPC : errno);
    offset += static_cast<uint64_t>(n);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

class Digest {
 public:
  explicit Digest(const EVP_MD* algorithm) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), algorithm, nullptr);
  }
  void Add(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), digest, &size);
    return gyre::Hex(std::as_bytes(std::span(digest, size)));
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

uint32_t CrcOf(std::string_view text) { return Crc32c(std::as_bytes(std::span(text.data(), text.size()))); }

// The rest of the next line if it begins with `word` and a blank; takes the line away.
std::optional<std::string_view> TakeLine(std::string_view* text, std::string_view word) {
  const size_t end = text->find('\n');
  if (end == std::string_view::npos || text->substr(0, word.size()) != word || (*text)[word.size()] != ' ') {
    return std::nullopt;
  }
  const std::string_view rest = text->substr(word.size() + 1, end - word.size() - 1);
  text->remove_prefix(end + 1);
  return rest;
}

bool ParseWhole(std::string_view text, uint64_t* out, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string EncodePartialState(const PartialState& state) {
  std::string out = fmt::format("gyre-download 1\nsize {}\nidentity {}\n", state.size, state.identity);
  for (const auto& [begin, end] : state.done.ranges()) out += fmt::format("done {}-{}\n", begin, end);
  return out + fmt::format("crc32c {:08x}\n", CrcOf(out));
}

std::optional<PartialState> DecodePartialState(std::string_view text) {
  const std::string_view all = text;
  PartialState out;
  const auto version = TakeLine(&text, "gyre-download"), size = TakeLine(&text, "size"),
             identity = TakeLine(&text, "identity");
  if (version != "1" || !size.has_value() || !identity.has_value() || !ParseWhole(*size, &out.size))
    return std::nullopt;
  out.identity = std::string(*identity);
  while (const auto range = TakeLine(&text, "done")) {
    const size_t dash = std::min(range->find('-'), range->size() - 1);
    ByteRange r;
    if (range->empty() || !ParseWhole(range->substr(0, dash), &r.begin) ||
        !ParseWhole(range->substr(dash + 1), &r.end) || r.begin >= r.end || r.end > out.size) {
      return std::nullopt;
    }
    if (out.done.Add(r) != r.size()) return std::nullopt;
  }
  const size_t covered = all.size() - text.size();
  uint64_t crc = 0;
  const auto sum = TakeLine(&text, "crc32c");
  if (!sum.has_value() || !text.empty() || !ParseWhole(*sum, &crc, 16) || crc != CrcOf(all.substr(0, covered))) {
    return std::nullopt;
  }
  return out;
}

std::string PartialPath(const std::string& path) { return path + ".partial"; }
std::string StatePath(const std::string& path) { return path + ".state"; }

Status RemovePartial(const std::string& path) {
  const StatusOr<std::optional<int>> fd = OpenLocked(PartialPath(path), 0);
  if (!fd.ok() && !absl::IsNotFound(fd.status())) return fd.status();
  if (fd.ok() && !fd->has_value()) return FailedPrecondition("{}: a process is downloading it", path);
  unlink(PartialPath(path).c_str());
  RemoveNotes(path);
  if (fd.ok()) close(**fd);
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<PartialFile>> PartialFile::Open(const std::string& path, Duration save_every) {
  GYRE_ASSIGN_OR_RETURN(const std::optional<int> fd, OpenLocked(PartialPath(path), O_CREAT));
  if (!fd.has_value()) return FailedPrecondition("{}: another process is downloading it", path);
  return std::unique_ptr<PartialFile>(new PartialFile(path, *fd, save_every));
}

PartialFile::PartialFile(std::string path, int fd, Duration save_every)
    : path_(std::move(path)), fd_(fd), save_every_(save_every) {}

PartialFile::~PartialFile() {
  Stop();
  bool empty = false;
  {
    const MutexLock lock(&mutex_);
    empty = done_.total() == 0;
  }
  if ((empty || identity_.empty()) && !ended_) Discard();
  close(fd_);
}

StatusOr<ByteRanges> PartialFile::Begin(std::optional<uint64_t> size, const std::string& identity) {
  size_ = size;
  identity_ = size.has_value() && identity.find_first_of("\r\n") == std::string::npos ? identity : "";
  ByteRanges kept;
  std::ifstream file(StatePath(path_), std::ios::binary);
  std::string text;
  for (char piece[4096]; text.size() < kLongestState && (file.read(piece, sizeof(piece)), file.gcount() > 0);) {
    text.append(piece, static_cast<size_t>(file.gcount()));
  }
  const std::optional<PartialState> state = DecodePartialState(text);
  struct stat info {};
  if (fstat(fd_, &info) != 0) return FileError(path_, "can't read its size", errno);
  const uint64_t last = !state.has_value() || state->done.ranges().empty() ? 0 : state->done.ranges().rbegin()->second;
  if (state.has_value() && !identity_.empty() && state->identity == identity_ && state->size == *size_ &&
      last <= static_cast<uint64_t>(info.st_size)) {
    kept = state->done;
  } else {
    RemoveNotes(path_);
    if (ftruncate(fd_, 0) != 0) return FileError(path_, "can't empty it", errno);
  }
  if (size.has_value()) GYRE_RETURN_IF_ERROR(Reserve(*size));
  {
    const MutexLock lock(&mutex_);
    done_ = kept;
  }
  GYRE_ASSIGN_OR_RETURN(thread_, StartThread("partial file", [this] { Run(); }));
  return kept;
}

Status PartialFile::Reserve(uint64_t size) {
  struct stat info {};
  struct statvfs disk {};
  struct rlimit most {};
  if (fstat(fd_, &info) != 0 || fstatvfs(fd_, &disk) != 0) return FileError(path_, "can't read its size", errno);
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && size > most.rlim_cur) {
    return ResourceExhausted("{}: this process may write files of {} only, and it needs {} (ulimit -f)", path_,
                             Gigabytes(most.rlim_cur), Gigabytes(size));
  }
  const uint64_t there = static_cast<uint64_t>(info.st_blocks) * 512;
  const uint64_t needed = size - std::min(size, there), free = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (needed > free) return NoSpace(path_, needed, free);
  if (size == 0 || fallocate(fd_, 0, 0, static_cast<off_t>(size)) == 0) return absl::OkStatus();
  if (errno == ENOSPC || errno == EDQUOT) return NoSpace(path_, needed, free);
  if (errno == EFBIG) return FileError(path_, "can't take the space", errno);
  return absl::OkStatus();  // a file system that takes space only as it is written
}

Status PartialFile::Write(uint64_t offset, std::string_view bytes) { return WriteAll(path_, fd_, offset, bytes); }

Status PartialFile::Advance(const ByteRanges& done) {
  const MutexLock lock(&mutex_);
  if (!(done == done_)) {
    done_ = done;
    changed_.Signal();
  }
  return error_;
}

StatusOr<std::optional<FileDigests>> PartialFile::Digests(uint64_t size, Deadline until) {
  const MutexLock lock(&mutex_);
  if (whole_ != size) {
    whole_ = size;
    changed_.Signal();
  }
  while (!digests_.has_value() && error_.ok() && changed_.WaitUntil(&mutex_, until)) {
  }
  GYRE_RETURN_IF_ERROR(error_);
  return digests_;
}

// Hashes the bytes before the first gap, while the file is in the system's cache, and writes the note.
void PartialFile::Run() {
  Digest sha256(EVP_sha256()), git(EVP_sha1());
  if (size_.has_value()) git.Add(std::string_view(fmt::format("blob {}", *size_) + '\0'));
  std::vector<char> piece(kHashPiece);
  ByteRanges saved;
  Deadline save_at = After(save_every_);
  uint64_t hashed = 0;
  for (;;) {
    ByteRanges done;
    bool stop = false, whole = false;
    {
      const MutexLock lock(&mutex_);
      while (!stop_ && done_.prefix() <= hashed && (whole_ != hashed || digests_.has_value()) &&
             (done_ == saved || Clock::now() < save_at)) {
        changed_.WaitUntil(&mutex_, done_ == saved ? kNoDeadline : save_at);
      }
      done = done_;
      stop = stop_;
      whole = whole_ == hashed && !digests_.has_value();
    }
    Status status;
    std::optional<FileDigests> digests;
    if (stop || (Clock::now() >= save_at && !(done == saved))) {
      status = SaveState(done);
      saved = done;
      save_at = After(save_every_);
    } else if (whole) {
      digests = FileDigests{.sha256 = sha256.Hex(), .git_sha1 = size_.has_value() ? git.Hex() : ""};
    } else if (done.prefix() > hashed) {
      const size_t count = static_cast<size_t>(std::min<uint64_t>(kHashPiece, done.prefix() - hashed));
      const ssize_t n = pread(fd_, piece.data(), count, static_cast<off_t>(hashed));
      if (n <= 0 && errno != EINTR) status = FileError(path_, "can't read it again", n == 0 ? EIO : errno);
      if (n > 0) {
        sha256.Add({piece.data(), static_cast<size_t>(n)});
        if (size_.has_value()) git.Add({piece.data(), static_cast<size_t>(n)});
        hashed += static_cast<uint64_t>(n);
      }
    }
    const MutexLock lock(&mutex_);
    if (error_.ok()) error_ = status;
    if (digests.has_value()) digests_ = digests;
    if (stop || !error_.ok() || digests.has_value()) changed_.SignalAll();
    if (stop || !error_.ok()) return;
  }
}

// The note is written after the bytes, and in one step, so that it never lists bytes that are not on the disk.
Status PartialFile::SaveState(const ByteRanges& done) {
  if (identity_.empty()) return absl::OkStatus();
  if (fdatasync(fd_) != 0) return FileError(path_, "can't write", errno);
  const std::string text = EncodePartialState({.size = *size_, .identity = identity_, .done = done});
  const std::string fresh = StatePath(path_) + ".new";
  const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  // If a note does not fit on the disk, a later run only takes longer; the older note is still true.
  if (fd < 0) return absl::OkStatus();
  const bool written = WriteAll(fresh, fd, 0, text).ok() && fdatasync(fd) == 0;
  close(fd);
  if (!written || rename(fresh.c_str(), StatePath(path_).c_str()) != 0) unlink(fresh.c_str());
  return absl::OkStatus();
}

void PartialFile::Stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

Status PartialFile::Commit() {
  Stop();
  if (fdatasync(fd_) != 0) return FileError(path_, "can't write", errno);
  if (rename(PartialPath(path_).c_str(), path_.c_str()) != 0) return FileError(path_, "can't rename it", errno);
  ended_ = true;
  RemoveNotes(path_);
  const int folder = open(FolderOf(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
  return absl::OkStatus();
}

void PartialFile::Discard() {
  Stop();
  ended_ = true;
  unlink(PartialPath(path_).c_str());
  RemoveNotes(path_);
}

}  // namespace gyre
