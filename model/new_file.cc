#include "model/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace gyre {
namespace {

std::string ErrorText(int error) { return std::generic_category().message(error); }

// Checks that `path` is free now, or a file that may be replaced.
Status CheckPlace(const std::string& path, const NewFileOptions& options) {
  struct stat there {};
  if (lstat(path.c_str(), &there) != 0) return absl::OkStatus();
  for (const auto& source : options.sources) {
    if (source->SameAs(path)) {
      return InvalidArgument("{}: this is the source itself ({}), which is never overwritten", path, source->path());
    }
  }
  // stat follows links: a device behind a link is still a device.
  const bool known = stat(path.c_str(), &there) == 0;
  if (known && S_ISDIR(there.st_mode)) return InvalidArgument("{}: a folder, expected a file's name", path);
  if (known && !S_ISREG(there.st_mode)) return InvalidArgument("{}: not a regular file, which is expected here", path);
  if (!options.overwrite) return InvalidArgument("{}: the file exists already; --force overwrites it", path);
  return absl::OkStatus();
}

}  // namespace

StatusOr<NewFile> NewFile::Create(const std::string& path, const NewFileOptions& options) {
  GYRE_RETURN_IF_ERROR(CheckPlace(path, options));
  NewFile f;
  // The target of a link is replaced, not the link.
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(path, error);
  f.path_ = error ? path : target.string();
  f.options_ = options;
  f.temporary_ = f.path_ + ".partial-XXXXXX";
  const int fd = mkostemp(f.temporary_.data(), O_CLOEXEC);
  if (fd < 0) return Unavailable("{}: can't write a file there: {}", path, ErrorText(errno));
  f.file_ = fdopen(fd, "wb");
  if (f.file_ == nullptr) {
    const int reason = errno;
    close(fd);
    unlink(f.temporary_.c_str());
    return Unavailable("{}: {}", path, ErrorText(reason));
  }
  return f;
}

NewFile::NewFile(NewFile&& o) noexcept
    : path_(std::move(o.path_)),
      temporary_(std::move(o.temporary_)),
      options_(std::move(o.options_)),
      file_(std::exchange(o.file_, nullptr)),
      written_(o.written_) {}

NewFile::~NewFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  unlink(temporary_.c_str());
}

Status NewFile::Write(std::span<const std::byte> bytes) {
  written_ += bytes.size();
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size()) return absl::OkStatus();
  return Unavailable("{}: can't write: {}", path_, ErrorText(errno));
}

Status NewFile::Place() const {
  // mkostemp makes files that only their owner reads; a new file has the rights that the umask leaves.
  const mode_t mask = umask(0);
  umask(mask);
  (void)chmod(temporary_.c_str(), 0666 & ~mask);
  if (!options_.overwrite) {
    // A file that was made meanwhile is not replaced. If the file system can't promise that, the check above must do.
    if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0)
      return absl::OkStatus();
    if (errno == EEXIST) return InvalidArgument("{}: the file exists already; --force overwrites it", path_);
  }
  GYRE_RETURN_IF_ERROR(CheckPlace(path_, options_));
  if (std::rename(temporary_.c_str(), path_.c_str()) == 0) return absl::OkStatus();
  return Unavailable("{}: {}", path_, ErrorText(errno));
}

Status NewFile::Finish() {
  std::FILE* file = std::exchange(file_, nullptr);
  int error = std::fflush(file) == 0 && fsync(fileno(file)) == 0 ? 0 : errno;
  if (std::fclose(file) != 0 && error == 0) error = errno;
  const Status status = error != 0 ? Unavailable("{}: can't write: {}", path_, ErrorText(error)) : Place();
  if (!status.ok()) unlink(temporary_.c_str());
  return status;
}

}  // namespace gyre
