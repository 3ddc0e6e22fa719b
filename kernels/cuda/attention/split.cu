#include "kernels/cuda/attention/splits.cuh"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

constexpr size_t kThreads = 128, kOfThread = kSplit / kThreads;  // positions

struct SplitShared {
  float weights[kSplit];
  OfWarps<float, kThreads / 32> largest, totals;
};
// Grid (splits, heads, rows). A thread has two positions, and then elements of the values.
template <KvType kType>
GPU_KERNEL(128, 8)
AttendSplitKernel(const float* q, const KvRow* rows, Pages keys, Pages values, size_t group, AttentionParams params,
                  Parts parts) {
  GPU_SHARED(SplitShared, s);
  const size_t split = gpu::BlockX(), head = gpu::BlockY(), r = gpu::BlockZ(),
               heads = static_cast<size_t>(params.heads);
  const KvRow row = rows[r];
  const Seen seen = SeenBy(row, params);
  const size_t first = split * kSplit, last = first + kSplit;
  if (first >= seen.end || last <= seen.begin) return;  // the whole block
  const size_t kv_head = head / group;
  const float* mine = q + (r * heads + head) * keys.dim;
  float scores[kOfThread], largest = -Infinity();
#pragma unroll
  for (size_t i = 0; i < kOfThread; ++i) {
    const size_t position = first + gpu::Thread() + i * kThreads;
    scores[i] = -Infinity();
    if (position < seen.begin || position >= seen.end) continue;
    const std::byte* page = HeadAt(keys, row, position, kv_head);
    float sum = 0;
    for (size_t d = 0; d < keys.dim; ++d) sum = gpu::Fma(mine[d], ElementAt<kType>(keys, page, d, position), sum);
    scores[i] = ScoreOf(sum, params);
    largest = scores[i] > largest ? scores[i] : largest;
  }
  largest = s.largest.Max(largest);
  float total = 0;
#pragma unroll
  for (size_t i = 0; i < kOfThread; ++i) {
    const size_t position = first + gpu::Thread() + i * kThreads;
    const bool sees = position >= seen.begin && position < seen.end;
    const float weight = sees ? Exp(gpu::Add(scores[i], -largest)) : 0.0f;
    s.weights[gpu::Thread() + i * kThreads] = weight;
    total = gpu::Add(total, weight);
  }
  total = s.totals.Sum(total);  // its barrier also lets all threads see the weights
  const size_t at = parts.At(r, head, heads, split);
  const size_t from = seen.begin > first ? seen.begin : first, to = seen.end < last ? seen.end : last;
  for (size_t d = gpu::Thread(); d < parts.value_dim; d += kThreads) {
    float sum = 0;
    for (size_t position = from; position < to; ++position) {
      const std::byte* page = HeadAt(values, row, position, kv_head);
      sum = gpu::Fma(s.weights[position - first], ElementAt<kType>(values, page, d, position), sum);
    }
    parts.sums[at * parts.value_dim + d] = sum;
  }
  if (gpu::Thread() == 0) {
    parts.largest[at] = largest;
    parts.totals[at] = total;
  }
}

// Grid (heads, rows). A thread has elements of the values.
GPU_KERNEL(128, 8) AttendJoinKernel(const KvRow* rows, AttentionParams params, Parts parts, float* out) {
  const size_t head = gpu::BlockX(), r = gpu::BlockY(), heads = static_cast<size_t>(params.heads);
  const Seen seen = SeenBy(rows[r], params);
  const size_t first = parts.At(r, head, heads, seen.begin / kSplit);
  const size_t end = parts.At(r, head, heads, (seen.end - 1) / kSplit) + 1;
  float largest = params.sinks != nullptr ? params.sinks[head] : parts.largest[first];
  for (size_t i = first; i < end; ++i) largest = parts.largest[i] > largest ? parts.largest[i] : largest;
  float total = params.sinks != nullptr ? Exp(gpu::Add(params.sinks[head], -largest)) : 0.0f;
  for (size_t i = first; i < end; ++i)
    total = gpu::Fma(parts.totals[i], Exp(gpu::Add(parts.largest[i], -largest)), total);
  for (size_t d = gpu::Thread(); d < parts.value_dim; d += kThreads) {
    float sum = 0;
    for (size_t i = first; i < end; ++i)
      sum = gpu::Fma(parts.sums[i * parts.value_dim + d], Exp(gpu::Add(parts.largest[i], -largest)), sum);
    out[(r * heads + head) * parts.value_dim + d] = gpu::Div(sum, total);
  }
}

constexpr size_t kMostRows = 65535;  // along z of a grid

}  // namespace

size_t AttentionScratch(size_t rows, int heads, size_t splits, const KvView& kv) {
  const size_t query = KvIsRotated(kv.type) ? static_cast<size_t>(kv.head_dim) : 0;
  return rows * static_cast<size_t>(heads) * (splits * (kv.ValueDim() + 2) + query);
}

void Attention(Stream stream, const float* q, const KvRow* rows, size_t count, const KvView& kv,
               const AttentionParams& params, size_t splits, float* scratch, float* out) {
  const auto heads = static_cast<size_t>(params.heads);
  const Pages keys = KeysOf(kv), values = ValuesOf(kv);
  const size_t value_dim = kv.ValueDim(), group = heads / static_cast<size_t>(kv.kv_heads);
  if (KvIsRotated(kv.type)) {
    const size_t n = count * heads * keys.dim;
    Rotate(stream, q, n, scratch);
    q = scratch;
    scratch += n;
  }
  for (size_t from = 0; from < count; from += kMostRows) {
    const size_t part = count - from < kMostRows ? count - from : kMostRows, places = part * heads * splits;
    const Parts parts{scratch, scratch + places * value_dim, scratch + places * (value_dim + 1), splits, value_dim};
    const auto x = static_cast<unsigned>(splits), y = static_cast<unsigned>(heads), z = static_cast<unsigned>(part);
    const float* mine = q + from * heads * keys.dim;
    if (CanAttendFew(kv)) {
      AttendFew(stream, mine, rows + from, part, kv, params, parts);
    } else {
      WithUnrotatedKvType(kv.type, [&]<KvType kType>() {
        GPU_LAUNCH(AttendSplitKernel<kType>, gpu::Grid(x, y, z), 128, stream, mine, rows + from, keys, values, group,
                   params, parts);
      });
    }
    GPU_LAUNCH(AttendJoinKernel, gpu::Grid(y, z), 128, stream, rows + from, params, parts,
               out + from * heads * value_dim);
  }
  if (KvIsRotated(kv.type)) Rotate(stream, out, count * heads * value_dim, out);
}

}  // namespace gyre::cuda
