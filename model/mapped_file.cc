#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

namespace gyre {
namespace {

std::string Reason(int error) { return std::generic_category().message(error); }

Status SystemError(const std::string& path, const char* what, int error) {
  if (error == ENOENT || error == ENOTDIR) return NotFound("{}: {}", path, Reason(error));
  if (error == ENOMEM) return ResourceExhausted("{}: can't {}: {}", path, what, Reason(error));
  return Unavailable("{}: can't {}: {}", path, what, Reason(error));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  int Release() { return std::exchange(fd, -1); }
};

}  // namespace

StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must not hang; regular files ignore the flag.
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return SystemError(path, "open", errno);
  struct stat info {};
  if (fstat(file.fd, &info) != 0) return SystemError(path, "read its size", errno);
  if (S_ISDIR(info.st_mode)) return InvalidArgument("{}: a folder, expected a model file", path);
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{}: not a regular file, which mapping needs", path);
  if (info.st_size == 0) return InvalidArgument("{}: the file is empty", path);
  const auto size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) return SystemError(path, "map", errno);
  std::shared_ptr<const MappedFile> mapped(
      new MappedFile(path, file.Release(), {static_cast<const std::byte*>(data), size}));
  GYRE_RETURN_IF_ERROR(mapped->CheckSize());
  return mapped;
}

MappedFile::~MappedFile() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  close(fd_);
}

void HintRead(std::span<const std::byte> range, ReadHint hint) {
  if (range.empty()) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(range.data()), begin = first / page * page;
  (void)madvise(reinterpret_cast<void*>(begin), first + range.size() - begin,
                hint == ReadHint::kSequential ? MADV_SEQUENTIAL : MADV_WILLNEED);
}

void MappedFile::Drop(std::span<const std::byte> range) const {
  if (range.data() < bytes_.data() || range.data() + range.size() > bytes_.data() + bytes_.size()) return;
  // A read maps a whole folio of the page cache, which has up to 2 MiB and begins at a multiple of its size in the
  // file.
  constexpr size_t kFolio = size_t{2} << 20;
  const auto first = static_cast<size_t>(range.data() - bytes_.data());
  const size_t begin = first / kFolio * kFolio,
               end = std::min(bytes_.size(), (first + range.size() + kFolio - 1) / kFolio * kFolio);
  if (begin < end) (void)madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

bool MappedFile::SameAs(const std::string& path) const {
  struct stat own {
  }, other{};
  return fstat(fd_, &own) == 0 && stat(path.c_str(), &other) == 0 && own.st_dev == other.st_dev &&
         own.st_ino == other.st_ino;
}

Status MappedFile::CheckSize() const {
  struct stat info {};
  if (fstat(fd_, &info) != 0) return SystemError(path_, "read its size", errno);
  if (static_cast<size_t>(info.st_size) == bytes_.size()) return absl::OkStatus();
  return DataLoss("{}: the file changed size while it was read, from {} to {} bytes", path_, bytes_.size(),
                  static_cast<size_t>(info.st_size));
}

}  // namespace gyre
