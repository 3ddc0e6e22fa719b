// Which ids of a row take part.
#pragma once

#include "kernels/cuda/gpu.cuh"
#include "kernels/ops.h"

namespace gyre::cuda {

// Whether the mask allows the id (an empty one allows all) and it is not among those to skip, which rise strictly.
template <typename Row>
GPU_FN bool TakesPart(const Row& row, size_t id) {
  const size_t words = row.mask.size();
  if (words != 0 && (id / 64 >= words || (gpu::Load<uint64_t>(row.mask.data() + id / 64) >> id % 64 & 1) == 0))
    return false;
  const TokenId* skip = row.skip.data();
  size_t low = 0, high = row.skip.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (static_cast<size_t>(skip[middle]) < id)
      low = middle + 1;
    else
      high = middle;
  }
  return low == row.skip.size() || static_cast<size_t>(skip[low]) != id;
}

}  // namespace gyre::cuda
