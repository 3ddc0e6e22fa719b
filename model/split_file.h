// Models that are split into several GGUF files.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"

namespace gyre {

inline constexpr int64_t kMaxSplitParts = 99999;

// All parts in order, whichever of NAME-00002-of-00003.gguf is named; of any other name, itself. kNotFound names the
// parts that are missing.
StatusOr<std::vector<std::string>> PartsOf(const std::string& path);
// kDataLoss where the file says that it is another part than `index` (from 0) of `count`.
Status CheckPart(const Gguf& part, size_t index, size_t count);
// Parts of different models, or of different splits of one, do not add up: kDataLoss.
Status CheckTogether(const std::vector<Gguf>& parts);

}  // namespace gyre
