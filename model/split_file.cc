#include "model/split_file.h"

#include <filesystem>

#include "model/mapped_file.h"

namespace gyre {

namespace {

// Whether a file says that it is no part of another one, whatever it is called.
bool IsWhole(const std::string& path) {
  const auto file = MappedFile::Open(path);
  if (!file.ok()) return false;
  const auto gguf = Gguf::Parse((*file)->bytes());
  if (!gguf.ok()) return false;
  const auto count = gguf->Int("split.count", 0, kMaxSplitParts);
  return count.ok() && count->value_or(0) <= 1;
}

}  // namespace

StatusOr<std::vector<std::string>> PartsOf(const std::string& path) {
  constexpr size_t kTail = 20;  // "-00002-of-00003.gguf"
  auto number = [&](size_t at) {
    int v = 0;
    for (size_t i = at; i < at + 5; ++i) {
      if (path[i] < '0' || path[i] > '9') return -1;
      v = 10 * v + (path[i] - '0');
    }
    return v;
  };
  if (path.size() <= kTail) return std::vector<std::string>{path};
  const size_t at = path.size() - kTail;
  if (path[at] != '-' || path.compare(at + 6, 4, "-of-") != 0 || path.compare(at + 15, 5, ".gguf") != 0) {
    return std::vector<std::string>{path};
  }
  const int count = number(at + 10), own = number(at + 1);
  if (count < 1 || own < 1 || own > count || IsWhole(path)) return std::vector<std::string>{path};
  std::vector<std::string> out;
  std::string missing;
  for (int i = 1; i <= count; ++i) {
    out.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", path.substr(0, at), i, count));
    std::error_code error;
    if (!std::filesystem::exists(out.back(), error)) missing += (missing.empty() ? "" : ", ") + out.back();
  }
  if (!missing.empty()) return NotFound("parts of the model are missing: {}", missing);
  return out;
}

Status CheckPart(const Gguf& part, size_t index, size_t count) {
  GYRE_ASSIGN_OR_RETURN(const auto number, part.Int("split.no", 0, kMaxSplitParts));
  GYRE_ASSIGN_OR_RETURN(const auto parts, part.Int("split.count", 0, kMaxSplitParts));
  if (number && parts && static_cast<size_t>(*number) == index && static_cast<size_t>(*parts) == count)
    return absl::OkStatus();
  return DataLoss("inside it is part {} of {}, expected part {} of {}", number.value_or(0) + 1, parts.value_or(1),
                  index + 1, count);
}

Status CheckTogether(const std::vector<Gguf>& parts) {
  int64_t sum = 0;
  for (const Gguf& part : parts) sum += static_cast<int64_t>(part.tensors().all().size());
  for (size_t i = 0; i < parts.size(); ++i) {
    GYRE_ASSIGN_OR_RETURN(const auto total, parts[i].Int("split.tensors.count", 0, INT32_MAX));
    if (!total || *total == sum) continue;
    return DataLoss("part {} belongs to a model of {} tensors, the parts have {} together", i + 1, *total, sum);
  }
  return absl::OkStatus();
}

}  // namespace gyre
