// Ops that mix the rows of a sequence: attention with its pages, recurrent states, convolutions.
#include <algorithm>
#include <bit>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/rows/rows.h"
#include "kernels/cuda/state/state.h"

namespace gyre::cuda {

void CudaBackend::RotaryTable(std::span<const KvRow> rows, const double* frequencies, size_t half, float magnitude,
                              float* cos, float* sin) {
  cuda::RotaryTable(stream_, rows.data(), rows.size(), frequencies, half, magnitude, cos, sin);
  Launched("RotaryTable");
}
void CudaBackend::Rope(float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
                       RopePairing pairing) {
  cuda::Rope(stream_, x, rows, heads, head_dim, cos, sin, half, pairing);
  Launched("Rope");
}
void CudaBackend::StoreKv(const float* k, const float* v, std::span<const KvRow> rows, const KvView& kv) {
  cuda::StoreKv(stream_, k, v, rows.data(), rows.size(), kv);
  Launched("StoreKv");
}

void CudaBackend::Attention(const float* q, std::span<const KvRow> rows, const KvView& kv,
                            const AttentionParams& params, float* out) {
  if (rows.empty()) return;
  if (CanAttendTiles(kv, params)) {
    AttendTiles(stream_, q, rows.data(), rows.size(), kv, params, out);
    return Launched("Attention");
  }
  if (params.end == 0)
    throw DeviceFailed("Attention could not be launched: a GPU must be told where the positions of its rows end");
  // A row's bits do not depend on the rows beside it, so the scratch may be small: some rows at a time.
  constexpr size_t kScratch = size_t{64} << 20;
  // In powers of two, so that a step of the same rows one position later has the same launches. Splits beyond a row's
  // position do nothing.
  const size_t splits = std::bit_ceil((params.end + kSplit - 1) / kSplit),
               each = AttentionScratch(1, params.heads, splits, kv);
  const size_t most = std::clamp<size_t>(kScratch / sizeof(float) / each, 1, rows.size());
  float* scratch = attention_scratch_.EnsureCapacity(*device_, most * each);
  const auto heads = static_cast<size_t>(params.heads);
  AttentionParams bounded = params;
  bounded.end = static_cast<uint32_t>(splits * kSplit);
  for (size_t from = 0; from < rows.size(); from += most) {
    cuda::Attention(stream_, q + from * heads * static_cast<size_t>(kv.head_dim), rows.data() + from,
                    std::min(most, rows.size() - from), kv, bounded, splits, scratch,
                    out + from * heads * kv.ValueDim());
    Launched("Attention");
  }
}

void CudaBackend::ShortConv(const float* x, size_t stride, std::span<const StateRun> runs,
                            const ShortConvParams& params, float* out) {
  if (runs.empty()) return;
  cuda::ShortConv(stream_, x, stride, Keep(runs), runs.size(), params, out);
  Launched("ShortConv");
}
void CudaBackend::ScanState(const StateScanRows& rows, std::span<const StateRun> runs, const StateScanParams& params,
                            float* out) {
  if (runs.empty()) return;
  cuda::ScanState(stream_, rows, Keep(runs), runs.size(), params, out);
  Launched("ScanState");
}
void CudaBackend::DecayGates(const float* x, size_t rows, size_t heads, size_t width, const float* bias, const float* a,
                             DecayStep form, float* step, float* decay) {
  cuda::DecayGates(stream_, x, rows, heads, width, bias, a, form, step, decay);
  Launched("DecayGates");
}

}  // namespace gyre::cuda
