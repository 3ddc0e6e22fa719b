#include "base/describe_bytes.h"

#include "base/counted.h"
#include "fmt/core.h"

namespace gyre {

std::string DescribeBytes(uint64_t bytes) {
  const auto n = static_cast<double>(bytes);
  if (bytes < 1024) return Counted(bytes, "byte");
  if (bytes < (uint64_t{1} << 20)) return fmt::format("{:.1f} KiB", n / 1024);
  if (bytes < (uint64_t{1} << 30)) return fmt::format("{:.1f} MiB", n / (1 << 20));
  return fmt::format("{:.2f} GiB", n / (1 << 30));
}

}  // namespace gyre
