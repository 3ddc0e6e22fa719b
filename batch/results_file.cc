#include "batch/results_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/files.h"
#include "batch/batch_lines.h"

namespace gyre {
namespace {

constexpr std::string_view kLineBegin = R"({"id":"batch_req_)";

// Whether a line that is cut may be one that BatchAnswer made.
bool MayBeAnswer(std::string_view cut) {
  const size_t n = std::min(cut.size(), kLineBegin.size());
  return cut.substr(0, n) == kLineBegin.substr(0, n);
}

}  // namespace

StatusOr<std::unique_ptr<ResultsFile>> ResultsFile::Open(const std::string& path) {
  GYRE_ASSIGN_OR_RETURN(const int fd,
                        OpenLocked(path, O_RDWR | O_APPEND, 0644, path + ": another process writes its answers to it"));
  std::unique_ptr<ResultsFile> file(new ResultsFile(path, fd));
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
    const size_t searched = pending.size();
    pending.append(buffer.data(), static_cast<size_t>(n));
    size_t at = 0;
    for (size_t end; (end = pending.find('\n', std::max(at, searched))) != std::string::npos; at = end + 1) {
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
  bytes_ = synced_ = static_cast<uint64_t>(whole);
  if (pending.empty()) return absl::OkStatus();
  if (!MayBeAnswer(pending)) return DataLoss("{}: its end is no answer of a batch, so nothing is written to it", path_);
  if (::ftruncate(fd_, whole) != 0) return FileError(path_, "can't be cut", errno);
  return absl::OkStatus();
}

Status ResultsFile::Add(const std::string& custom_id, std::string_view line) {
  if (broken_) return DataLoss("{}: its end could not be mended after a failed write", path_);
  unsynced_.reserve(unsynced_.size() + 1);  // nothing may throw once the line is there
  std::string noted = custom_id;
  if (!done_.insert(custom_id).second) return Internal("{}: {} has an answer already", path_, custom_id);
  const uint64_t before = bytes_;
  while (!line.empty()) {
    const ssize_t n = ::write(fd_, line.data(), line.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      done_.erase(custom_id);
      CutTo(before);
      return FileError(path_, "can't be written", error);
    }
    line.remove_prefix(static_cast<size_t>(n));
    bytes_ += static_cast<uint64_t>(n);
  }
  unsynced_.push_back(std::move(noted));
  return absl::OkStatus();
}

Status ResultsFile::Sync() {
  const std::vector<std::string> ids = std::exchange(unsynced_, {});
  if (ids.empty()) return absl::OkStatus();
  if (::fdatasync(fd_) != 0) {
    const int error = errno;
    for (const std::string& id : ids) done_.erase(id);
    CutTo(synced_);
    return FileError(path_, "can't be synced", error);
  }
  synced_ = bytes_;
  return absl::OkStatus();
}

void ResultsFile::CutTo(uint64_t bytes) {
  broken_ = ::ftruncate(fd_, static_cast<off_t>(bytes)) != 0;
  if (!broken_) bytes_ = bytes;
}

}  // namespace gyre
