#include "cli/out_file.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace gyre {

StatusOr<OutFile> OutFile::Open(const std::string& path, const NewFileOptions& options) {
  OutFile out;
  out.path_ = path;
  std::error_code error;
  const auto there = std::filesystem::status(path, error);
  if (std::filesystem::is_character_file(there) || std::filesystem::is_fifo(there)) {
    out.device_.reset(std::fopen(path.c_str(), "wb"));
    if (out.device_ == nullptr) return Unavailable("{}: {}", path, std::generic_category().message(errno));
    return out;
  }
  GYRE_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path, options));
  out.file_.emplace(std::move(file));
  return out;
}

Status OutFile::Write(std::span<const std::byte> bytes) {
  if (file_) return file_->Write(bytes);
  if (std::fwrite(bytes.data(), 1, bytes.size(), device_.get()) == bytes.size()) return absl::OkStatus();
  return Unavailable("{}: can't write: {}", path_, std::generic_category().message(errno));
}

Status OutFile::Finish() {
  if (file_) return file_->Finish();
  if (std::fclose(device_.release()) == 0) return absl::OkStatus();
  return Unavailable("{}: can't write: {}", path_, std::generic_category().message(errno));
}

}  // namespace gyre
