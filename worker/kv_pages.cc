#include "worker/kv_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>

namespace gyre {

StatusOr<std::unique_ptr<KvPages>> KvPages::Make(const KvShape& shape, int kv_heads, int head_dim) {
  if (shape.block_size < 1 || shape.num_blocks < 1 || shape.num_blocks == kNoBlock) {
    return InvalidArgument("{} KV blocks of {} positions: expected at least one of each", shape.num_blocks,
                           shape.block_size);
  }
  const size_t elem_bytes = shape.type == KvType::kF16 ? 2 : 4;
  size_t half = elem_bytes;
  bool overflow = false;
  for (const size_t factor : {size_t{shape.num_blocks}, static_cast<size_t>(shape.block_size),
                              static_cast<size_t>(kv_heads), static_cast<size_t>(head_dim)}) {
    overflow |= __builtin_mul_overflow(half, factor, &half);
  }
  if (overflow || half > std::numeric_limits<size_t>::max() / 2) {
    return ResourceExhausted("{} KV blocks of {} positions of {} x {} elements: more than can be addressed",
                             shape.num_blocks, shape.block_size, kv_heads, head_dim);
  }
  std::unique_ptr<KvPages> pages(new KvPages);
  void* memory = mmap(nullptr, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted("{} KV blocks of {} positions take {} MiB a layer: {}", shape.num_blocks, shape.block_size,
                             (2 * half) >> 20, std::strerror(errno));
  }
  pages->shape_ = shape;
  pages->memory_ = memory;
  pages->bytes_ = 2 * half;
  pages->view_ = {.half = shape.type == KvType::kF16,
                  .k = static_cast<std::byte*>(memory),
                  .v = static_cast<std::byte*>(memory) + half,
                  .block_size = shape.block_size,
                  .kv_heads = kv_heads,
                  .head_dim = head_dim};
  return pages;
}

KvPages::~KvPages() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

}  // namespace gyre
