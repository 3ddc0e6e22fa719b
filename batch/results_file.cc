#include "batch/results_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/files.h"
#include "batch/batch_lines.h"

namespace gyre {

StatusOr<std::unique_ptr<ResultsFile>> ResultsFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0644);
  if (fd < 0) return FileError(path, "can't be opened", errno);
  std::unique_ptr<ResultsFile> file(new ResultsFile(path, fd));
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return FailedPrecondition("{}: another process writes its answers to it", path);
    return FileError(path, "can't be locked", errno);
  }
  GYRE_RETURN_IF_ERROR(file->ReadAll());
  return file;
}

ResultsFile::~ResultsFile() { ::close(fd_); }

Status ResultsFile::ReadAll() {
  std::string pending;
  std::array<char, 1 << 16> buffer;
  off_t whole = 0;  // bytes of whole lines
  for (;;) {
    const ssize_t n = ::read(fd_, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path_, "can't be read", errno);
    if (n == 0) break;
    pending.append(buffer.data(), static_cast<size_t>(n));
    size_t at = 0;
    for (size_t end; (end = pending.find('\n', at)) != std::string::npos; at = end + 1) {
      std::string id = AnsweredId(std::string_view(pending).substr(at, end - at));
      if (id.empty()) {
        return DataLoss("{}: line {} is no answer of a batch, so nothing is written to it", path_, done_.size() + 1);
      }
      if (!done_.insert(std::move(id)).second)
        return DataLoss("{}: line {} answers a request for the second time", path_, done_.size() + 1);
      whole += static_cast<off_t>(end + 1 - at);
    }
    pending.erase(0, at);
  }
  bytes_ = static_cast<uint64_t>(whole);
  if (pending.empty()) return absl::OkStatus();
  if (whole == 0 && pending.front() != '{') return DataLoss("{}: it has no answers of a batch", path_);
  if (::ftruncate(fd_, whole) != 0) return FileError(path_, "can't be cut", errno);
  return absl::OkStatus();
}

Status ResultsFile::Add(const std::string& custom_id, std::string_view line) {
  if (!done_.insert(custom_id).second) return Internal("{}: {} has an answer already", path_, custom_id);
  while (!line.empty()) {
    const ssize_t n = ::write(fd_, line.data(), line.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path_, "can't be written", errno);
    line.remove_prefix(static_cast<size_t>(n));
    bytes_ += static_cast<uint64_t>(n);
  }
  dirty_ = true;
  return absl::OkStatus();
}

Status ResultsFile::Sync() {
  if (!std::exchange(dirty_, false)) return absl::OkStatus();
  if (::fdatasync(fd_) != 0) return FileError(path_, "can't be synced", errno);
  return absl::OkStatus();
}

}  // namespace gyre
