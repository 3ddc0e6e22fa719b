// Launches of what reads and writes pages of the KV cache, whose layout is KvView's. All pointers are the device's,
// also those in KvView, AttentionParams and KvRow.
#pragma once

#include <cstddef>

#include "kernels/cuda/stream.h"
#include "kernels/ops.h"

namespace gyre::cuda {

inline constexpr size_t kSplit = 256;  // positions that a block attends to

// store.cu: Backend::StoreKv.
void StoreKv(Stream stream, const float* k, const float* v, const KvRow* rows, size_t count, const KvView& kv);

// store.cu: RotateKvBlocks of n elements; out may be x.
void Rotate(Stream stream, const float* x, size_t n, float* out);

// split.cu, few.cu: Backend::Attention without rounding, for any page, head and type: each block attends for some heads
// of one row to one split, and another launch joins a row's splits in the order of their numbers. A row's bits depend
// on its position, its sequence and `params`, not on `splits` or other rows.
//
// splits: at least 1 + position / kSplit of every row. `scratch` holds AttentionScratch floats.
size_t AttentionScratch(size_t rows, int heads, size_t splits, const KvView& kv);
void Attention(Stream stream, const float* q, const KvRow* rows, size_t count, const KvView& kv,
               const AttentionParams& params, size_t splits, float* scratch, float* out);

// tiles.cu: Backend::Attention of a prompt's rows, for some forms of pages.
bool CanAttendTiles(const KvView& kv, const AttentionParams& params);
void AttendTiles(Stream stream, const float* q, const KvRow* rows, size_t count, const KvView& kv,
                 const AttentionParams& params, float* out);

}  // namespace gyre::cuda
