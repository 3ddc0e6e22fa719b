// Elements of the pages of a KV cache.
#pragma once

#include "base/kv_type.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/ops.h"

namespace gyre::cuda {

// The keys, or the values, of all pages. Element d at a position of a page is number d * along + position * across of
// its head; scales of 32 elements lie in the same way behind the codes.
struct Pages {
  std::byte* data = nullptr;
  size_t page_bytes = 0, head_bytes = 0, code_bytes = 0;  // code_bytes: of a head, without its scales
  size_t block = 0, dim = 0;                              // positions of a page, elements of a head
  bool by_element = false;                                // the positions of an element lie side by side
};
inline Pages KeysOf(const KvView& kv) {
  const auto block = static_cast<size_t>(kv.block_size), dim = static_cast<size_t>(kv.head_dim);
  return {kv.k, kv.PageBytes(), kv.HeadBytes(), KvCodeBytes(kv.type, block * dim), block, dim, true};
}
inline Pages ValuesOf(const KvView& kv) {
  if (kv.values_in_keys) return KeysOf(kv);
  const auto block = static_cast<size_t>(kv.block_size), dim = kv.ValueDim();
  return {kv.v, kv.ValuePageBytes(), kv.ValueHeadBytes(), KvCodeBytes(kv.type, block * dim), block, dim, false};
}

GPU_FN std::byte* HeadAt(const Pages& pages, const KvRow& row, size_t position, size_t head) {
  return pages.data + row.table[position / pages.block] * pages.page_bytes + head * pages.head_bytes;
}
// The index, within a head, of number i of a position. A position has `elements` numbers: elements, bytes of nibbles,
// or scales.
GPU_FN size_t NumberAt(const Pages& pages, size_t elements, size_t i, size_t position) {
  return pages.by_element ? i * pages.block + position % pages.block : position % pages.block * elements + i;
}

template <KvType kType>
GPU_FN float ElementAt(const Pages& pages, const std::byte* head, size_t d, size_t position) {
  if constexpr (kType == KvType::kF32) {
    return reinterpret_cast<const float*>(head)[NumberAt(pages, pages.dim, d, position)];
  } else if constexpr (kType == KvType::kF16 || kType == KvType::kBf16) {
    const uint16_t h = reinterpret_cast<const uint16_t*>(head)[NumberAt(pages, pages.dim, d, position)];
    return kType == KvType::kF16 ? gpu::OfHalf(h) : gpu::OfBf16(h);
  } else {
    const auto* scales = reinterpret_cast<const uint16_t*>(head + pages.code_bytes);
    const float scale = gpu::OfHalf(scales[NumberAt(pages, pages.dim / kKvBlock, d / kKvBlock, position)]);
    if constexpr (kType == KvType::kQ8_0) {
      const auto code = static_cast<int8_t>(head[NumberAt(pages, pages.dim, d, position)]);
      return gpu::Mul(scale, static_cast<float>(code));
    } else {
      const auto both = static_cast<int>(head[NumberAt(pages, pages.dim / 2, KvNibbleByte(d), position)]);
      return gpu::Mul(scale, static_cast<float>((both >> KvNibbleShift(d) & 15) - 8));
    }
  }
}

}  // namespace gyre::cuda
