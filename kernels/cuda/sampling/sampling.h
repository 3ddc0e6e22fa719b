// Launches of the ops on rows of logits. Rows, as ops.h describes them, lie on the device with all that they point to.
#pragma once

#include <cstddef>

#include "kernels/cuda/stream.h"
#include "kernels/ops.h"

namespace gyre::cuda {

inline constexpr size_t kIdsOfBlock = 4096;
inline constexpr uint32_t kMostBest = 2048;  // of TopKRow::k

// top_k.cu: each block sorts 4,096 ids, then a block for each row joins their best ones. `most` is the largest k of the
// rows. `scratch` holds TopKScratch words. REQUIRES: most <= kMostBest.
size_t TopKScratch(size_t rows, size_t vocab, uint32_t most);
void TopK(Stream stream, const TopKRow* rows, size_t count, size_t vocab, uint32_t most, uint64_t* scratch);

// log_sum_exp.cu: sums of 4,096 ids in double, added in their order. `scratch` holds LogSumExpScratch numbers.
size_t LogSumExpScratch(size_t rows, size_t vocab);
void LogSumExp(Stream stream, const LogSumExpRow* rows, size_t count, size_t vocab, double* scratch);
void Pick(Stream stream, const PickRow* rows, size_t count);

}  // namespace gyre::cuda
