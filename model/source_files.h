// The files that a model is read from: no command replaces them, whatever the user says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/mapped_file.h"

namespace gyre {

// `path`: of a model, as OpenModel takes it, or of any other file. All parts of a split file; of a folder all files but
// its GGUF files, as these may be made of it. Files that can't be opened are left out.
std::vector<std::shared_ptr<const MappedFile>> SourceFiles(const std::string& path);

}  // namespace gyre
