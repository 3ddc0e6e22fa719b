#include "model/source_files.h"

#include <filesystem>

#include "model/split_file.h"

namespace gyre {

std::vector<std::shared_ptr<const MappedFile>> SourceFiles(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path p(path);
  const bool shard = p.extension() == ".safetensors";
  std::vector<std::string> names;
  if (fs::is_directory(p, error) || shard) {
    const fs::path folder = !shard ? p : p.has_parent_path() ? p.parent_path() : fs::path(".");
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      std::error_code unknown;
      if (it->path().extension() != ".gguf" && it->is_regular_file(unknown)) names.push_back(it->path().string());
    }
  } else if (StatusOr<std::vector<std::string>> parts = PartsOf(path); parts.ok()) {
    names = *std::move(parts);
  } else {
    names = {path};
  }
  std::vector<std::shared_ptr<const MappedFile>> files;
  for (const std::string& name : names) {
    if (auto file = MappedFile::Open(name); file.ok()) files.push_back(*std::move(file));
  }
  return files;
}

}  // namespace gyre
