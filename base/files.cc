#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "fmt/core.h"

namespace gyre {
namespace {

constexpr size_t kMost = 1 << 20;

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FileError(path, "can't write it", n == 0 ? ENOSPC : errno);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return ::fsync(fd) == 0 ? absl::OkStatus() : FileError(path, "can't write it", errno);
}

// Syncs the folder of `path`, so that a file renamed or made in it is still there after a power cut.
void SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const File fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) ::fsync(fd.get());
}

}  // namespace

Status FileError(const std::string& path, const char* what, int error) {
  const std::string reason = std::generic_category().message(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return ResourceExhausted("{}: {}: {}", path, what, reason);
    case ENOENT:
    case ENOTDIR: return NotFound("{}: {}: {}", path, what, reason);
    case EACCES:
    case EPERM:
    case EROFS: return MakeStatus(absl::StatusCode::kPermissionDenied, "{}: {}: {}", path, what, reason);
    default: return Unavailable("{}: {}: {}", path, what, reason);
  }
}

std::string PathIn(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const File fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return NotFound("{}: {}", path, std::strerror(errno));
  std::string out(kMost + 1, '\0');
  size_t have = 0;
  while (have < out.size()) {
    const ssize_t n = ::read(fd.get(), out.data() + have, out.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return NotFound("{}: {}", path, std::strerror(errno));
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  if (have > kMost) return InvalidArgument("{}: more than {} bytes", path, kMost);
  out.resize(have);
  return out;
}

StatusOr<int> OpenLocked(const std::string& path, int flags, mode_t mode, const std::string& held) {
  const int fd = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC, mode);
  if (fd < 0) return FileError(path, "can't be opened", errno);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  ::close(fd);
  if (error == EWOULDBLOCK) return FailedPrecondition("{}", held);
  return FileError(path, "can't be locked", error);
}

Status CreateFile(const std::string& path, std::string_view bytes, mode_t mode) {
  const File fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (fd.get() < 0 && errno == EEXIST) return FailedPrecondition("{} is there already", path);
  if (fd.get() < 0) return FileError(path, "can't make it", errno);
  GYRE_RETURN_IF_ERROR(WriteAll(fd.get(), bytes, path));
  SyncFolderOf(path);
  return absl::OkStatus();
}

std::string FileStamp(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return "-;";
  return fmt::format("{}.{}.{}.{};", s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

Status ReplaceFile(const std::string& path, std::string_view bytes, mode_t mode) {
  static std::atomic<uint64_t> count{0};
  const std::string beside = fmt::format("{}.{}-{}.new", path, ::getpid(), count++);
  ::unlink(beside.c_str());
  Status status = CreateFile(beside, bytes, mode);
  if (status.ok() && ::rename(beside.c_str(), path.c_str()) != 0) status = FileError(path, "can't replace it", errno);
  if (!status.ok()) {
    ::unlink(beside.c_str());
    return status;
  }
  SyncFolderOf(path);
  return absl::OkStatus();
}

Status CheckPrivate(const std::string& path, std::string_view secret) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) return absl::OkStatus();
  const mode_t others = about.st_uid == ::geteuid() ? 077 : 007;
  if ((about.st_mode & others) == 0) return absl::OkStatus();
  return InvalidArgument("{}: others on this machine may read {} (the file's mode is {:04o}); `chmod 600 {}` mends it",
                         path, secret, about.st_mode & 07777, path);
}

Status CheckWritable(const std::string& folder) {
  return ::access(folder.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus() : FileError(folder, "can't write there", errno);
}

Status MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? FileError(path, "can't make the folder", error.value()) : absl::OkStatus();
}

Status MakePrivateFolder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return FileError(path, "can't make the folder", errno);
  if (!std::filesystem::is_directory(path, error)) return Unavailable("{}: it is no folder", path);
  return absl::OkStatus();
}

}  // namespace gyre
