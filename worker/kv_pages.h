// The page pool of one layer: K and V of every block, the page's number being the block's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/stage_control.h"
#include "base/status.h"
#include "kernels/ops.h"

namespace gyre {

struct KvShape {
  KvType type = KvType::kF16;
  int block_size = 0;
  uint32_t num_blocks = 0;
  bool operator==(const KvShape&) const = default;
};

// Anonymous memory that is touched only where it is used: a big pool costs nothing before.
class KvPages {
 public:
  // kInvalidArgument: no blocks or positions. kResourceExhausted: does not fit, with the numbers.
  static StatusOr<std::unique_ptr<KvPages>> Make(const KvShape& shape, int kv_heads, int head_dim);
  ~KvPages();
  KvPages(const KvPages&) = delete;
  KvPages& operator=(const KvPages&) = delete;

  const KvShape& shape() const { return shape_; }
  const KvView& view() const { return view_; }
  size_t bytes() const { return bytes_; }

 private:
  KvPages() = default;

  KvShape shape_;
  KvView view_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace gyre
