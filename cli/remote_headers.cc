#include "cli/remote_headers.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>

#include "base/files.h"
#include "hub/file_names.h"
#include "hub/remote_file.h"
#include "model/gguf.h"
#include "model/mapped_file.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFirstBytes = uint64_t{1} << 20;
constexpr uint64_t kMostHeaderBytes = uint64_t{128} << 20;

// Doubles the number of bytes that it reads until they hold the whole header.
StatusOr<std::string> GgufHeader(RemoteFile& file) {
  for (uint64_t count = kFirstBytes;; count *= 2) {
    count = std::min({count, file.size(), kMostHeaderBytes});
    GYRE_ASSIGN_OR_RETURN(std::string bytes, file.Read(0, count));
    GYRE_ASSIGN_OR_RETURN(const std::optional<size_t> header,
                          Gguf::HeaderBytes(std::as_bytes(std::span(bytes)), file.size()));
    if (header) {
      bytes.resize(std::min(*header, bytes.size()));
      return bytes;
    }
    if (count == kMostHeaderBytes) return DataLoss("a GGUF header of more than {} bytes", kMostHeaderBytes);
  }
}

StatusOr<std::string> SafetensorsHeader(RemoteFile& file) {
  GYRE_ASSIGN_OR_RETURN(const std::string length_bytes, file.Read(0, 8));
  uint64_t length = 0;
  std::memcpy(&length, length_bytes.data(), sizeof length);
  if (length > std::min(kMostHeaderBytes, file.size() - 8)) {
    return DataLoss("a header of {} bytes in a file of {}: no safetensors", length, file.size());
  }
  return file.Read(0, 8 + length);
}

StatusOr<std::string> HeaderOf(const std::string& path, RemoteFile& file) {
  if (HasEnding(path, ".safetensors")) return SafetensorsHeader(file);
  if (HasEnding(path, ".json") || HasEnding(path, ".jinja")) return file.Read(0, file.size());
  GYRE_ASSIGN_OR_RETURN(std::string first, file.Read(0, std::min(file.size(), kFirstBytes)));
  return first.rfind("GGUF", 0) == 0 ? GgufHeader(file) : std::move(first);
}

// Writes bytes at an offset of a file of `size` bytes; parts that are never written are holes.
Status WriteSparse(const std::string& path, uint64_t offset, const std::string& bytes, uint64_t size) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return FileError(path, "can't write it", errno);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  const int error = done < bytes.size() || ftruncate(fd, static_cast<off_t>(size)) != 0 ? errno : 0;
  close(fd);
  return error != 0 ? FileError(path, "can't write it", error) : absl::OkStatus();
}

// Factors of the rotary embedding are part of the model's description: zeros in their place would be refused.
Status FetchRopeFactors(const std::string& path, RemoteFile& file) {
  GYRE_ASSIGN_OR_RETURN(const auto mapped, MappedFile::Open(path));
  GYRE_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::Parse(mapped->bytes()));
  for (const auto& [name, tensor] : gguf.tensors().all()) {
    if (name.rfind("rope_", 0) != 0) continue;
    const auto offset = static_cast<uint64_t>(tensor.data - mapped->bytes().data());
    GYRE_ASSIGN_OR_RETURN(const std::string bytes, file.Read(offset, tensor.bytes));
    GYRE_RETURN_IF_ERROR(WriteSparse(path, offset, bytes, file.size()));
  }
  return absl::OkStatus();
}

}  // namespace

Status RemoteHeaders::FetchFile(const std::string& path, const std::string& url, const PullOptions& options) {
  const auto interrupted = options.interrupted ? options.interrupted : [] { return false; };
  GYRE_ASSIGN_OR_RETURN(const auto file, RemoteFile::Open(url, options.hub, interrupted));
  GYRE_ASSIGN_OR_RETURN(const std::string begin, HeaderOf(path, *file));
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  GYRE_RETURN_IF_ERROR(WriteSparse(path, 0, begin, file->size()));
  if (begin.rfind("GGUF", 0) == 0) GYRE_RETURN_IF_ERROR(FetchRopeFactors(path, *file));
  fetched_ += file->fetched();
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<RemoteHeaders>> RemoteHeaders::Fetch(const PullPlan& plan, const PullOptions& options) {
  std::error_code error;
  std::string folder = (fs::temp_directory_path(error) / "gyre-headers-XXXXXX").string();
  if (error || mkdtemp(folder.data()) == nullptr) return Unavailable("no folder for temporary files: {}", folder);
  auto out = std::unique_ptr<RemoteHeaders>(new RemoteHeaders(folder));
  const CachedModel& model = plan.model;
  const std::string inside = folder + "/" + (model.repo.empty() ? "files" : FileName(model.repo));
  for (size_t i = 0; i < model.files.size(); ++i) {
    const std::string& path = model.files[i].path;
    GYRE_RETURN_IF_ERROR(Annotate(out->FetchFile(inside + "/" + path, plan.urls[i], options), path));
  }
  out->path_ = inside + (model.open.empty() ? "" : "/" + model.open);
  return out;
}

RemoteHeaders::~RemoteHeaders() {
  std::error_code error;
  fs::remove_all(folder_, error);
}

}  // namespace gyre
