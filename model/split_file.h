// Models that are split into several GGUF files.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"

namespace gyre {

inline constexpr int64_t kMaxSplitParts = 99999;

// All parts in order, from the name of any part such as NAME-00002-of-00003.gguf. Any other name gives itself, and so
// does a file whose keys say that it is whole.
// kNotFound names the missing parts.
StatusOr<std::vector<std::string>> PartsOf(const std::string& path);
// kDataLoss if the file says that it is another part than `index` (from 0) of `count`.
Status CheckPart(const Gguf& part, size_t index, size_t count);
// kDataLoss if the parts belong to different models, or to different splits of one.
Status CheckTogether(const std::vector<Gguf>& parts);

}  // namespace gyre
