// Attention of generated rows to pages of 16 positions: a block reads a split of keys and values once for up to four
// query heads, 16 bytes a lane.
#include "kernels/cuda/attention/splits.cuh"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

constexpr size_t kThreads = 128, kPage = 16, kMostDim = 576;
constexpr int kMostHeads = 4;
constexpr size_t kOfLane = 8;  // elements of a value that a thread has

// The 16 bytes of keys that a lane loads: positions of one element, or, with nibbles, of two elements.
constexpr int PositionsOf(KvType type) { return type == KvType::kF32 ? 4 : KvHasScales(type) ? 16 : 8; }

template <int kHeads>
struct FewShared {
  float q[kHeads][kMostDim];
  // Each position has a score here, then its weight. A gap after eight positions avoids bank conflicts.
  float weights[kHeads][kSplit + kSplit / 8];
  // The values of each head, half of kOfLane and thread, which the threads of an element add up.
  gpu::Float4 sums[kHeads][2][kThreads + 4];
};
GPU_FN size_t Slot(size_t position) { return position + position / 8; }

GPU_FN void OfHalves(const gpu::Uint4& v, bool bf16, float (&out)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto bits = static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2) & 0xFFFF);
    out[i] = bf16 ? gpu::OfBf16(bits) : gpu::OfHalf(bits);
  }
}

// A lane's products of q with the keys of its positions, over its slice of the elements: every kSlices-th line.
template <KvType kType, int kHeads>
GPU_FN void Multiply(const FewShared<kHeads>& s, const Pages& keys, const std::byte* head, size_t part, size_t slice,
                     float (&sums)[kHeads][PositionsOf(kType)]) {
  constexpr int kPositions = PositionsOf(kType);
  constexpr size_t kSlices = static_cast<size_t>(kPositions) / 2;
  if constexpr (!KvHasScales(kType)) {
    constexpr size_t kLine = kPage * (kType == KvType::kF32 ? 4 : 2);
    for (size_t d = slice; d < keys.dim; d += kSlices) {
      const auto v = gpu::LoadConstant16(head + d * kLine + part * 16);
      float k[kPositions];
      if constexpr (kType == KvType::kF32)
        k[0] = gpu::OfBits(v.x), k[1] = gpu::OfBits(v.y), k[2] = gpu::OfBits(v.z), k[3] = gpu::OfBits(v.w);
      else
        OfHalves(v, kType == KvType::kBf16, k);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kPositions; ++i) sums[h][i] = gpu::Fma(s.q[h][d], k[i], sums[h][i]);
      }
    }
  } else {
    constexpr bool kNibbles = kType == KvType::kQ4_0Plain;
    constexpr size_t kLines = kNibbles ? 16 : 32;  // of a block of elements that share scales
    for (size_t b = 0; b < keys.dim / kKvBlock; ++b) {
      float scale[2][8];
      OfHalves(gpu::LoadConstant16(head + keys.code_bytes + b * 32), false, scale[0]);
      OfHalves(gpu::LoadConstant16(head + keys.code_bytes + b * 32 + 16), false, scale[1]);
      for (size_t line = slice; line < kLines; line += kSlices) {
        const auto v = gpu::LoadConstant16(head + (b * kLines + line) * 16);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < kPositions; ++i) {
          const uint32_t code = words[i / 4] >> 8 * (i % 4) & 255;
          const float by = scale[i / 8][i % 8];
          if constexpr (kNibbles) {
            const float low = gpu::Mul(by, static_cast<float>(static_cast<int>(code & 15) - 8)),
                        high = gpu::Mul(by, static_cast<float>(static_cast<int>(code >> 4) - 8));
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
              const size_t d = b * kKvBlock + line;
              sums[h][i] = gpu::Fma(s.q[h][d], low, sums[h][i]);
              sums[h][i] = gpu::Fma(s.q[h][d + 16], high, sums[h][i]);
            }
          } else {
            const float k = gpu::Mul(by, static_cast<float>(static_cast<int8_t>(code)));
#pragma unroll
            for (int h = 0; h < kHeads; ++h) sums[h][i] = gpu::Fma(s.q[h][b * kKvBlock + line], k, sums[h][i]);
          }
        }
      }
    }
  }
}

// Where the eight elements of a thread's unit lie in a value. Nibbles: four bytes have elements 16 apart. f32: each
// half of them lies beside those of the next unit, as a load has 16 bytes.
template <KvType kType>
GPU_FN size_t ElementOf(size_t unit, size_t i, size_t dim) {
  if constexpr (kType == KvType::kQ4_0Plain) return unit / 4 * 32 + unit % 4 * 4 + i / 4 * 16 + i % 4;
  if constexpr (kType == KvType::kF32) return i / 4 * (dim / 2) + unit * 4 + i % 4;
  return unit * kOfLane + i;
}
template <KvType kType>
GPU_FN void LoadValues(const Pages& values, const std::byte* head, size_t position, size_t unit, float (&v)[kOfLane]) {
  const size_t at = position % kPage;
  if constexpr (kType == KvType::kF32) {
    const std::byte* from = head + (at * values.dim + unit * 4) * 4;
    const auto a = gpu::Load<gpu::Float4>(from), b = gpu::Load<gpu::Float4>(from + values.dim * 2);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  } else if constexpr (!KvHasScales(kType)) {
    OfHalves(gpu::LoadConstant16(head + (at * values.dim + unit * kOfLane) * 2), kType == KvType::kBf16, v);
  } else {
    const auto* scales = reinterpret_cast<const uint16_t*>(head + values.code_bytes);
    const float by = gpu::OfHalf(scales[at * (values.dim / kKvBlock) + unit / 4]);
    if constexpr (kType == KvType::kQ8_0) {
      const auto codes = gpu::Load<gpu::Uint2>(head + at * values.dim + unit * kOfLane);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        v[i] = gpu::Mul(by, static_cast<float>(static_cast<int8_t>((i < 4 ? codes.x : codes.y) >> 8 * (i % 4) & 255)));
    } else {
      const auto codes = gpu::Load<uint32_t>(head + at * (values.dim / 2) + unit * 4);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        v[i] = gpu::Mul(by, static_cast<float>(static_cast<int>(codes >> (8 * (i % 4) + i / 4 * 4) & 15) - 8));
    }
  }
}

// Grid (splits, key-value heads * chunks of their query heads, rows).
template <KvType kType, int kHeads>
GPU_KERNEL(128, 4)
AttendFewKernel(const float* q, const KvRow* rows, Pages keys, Pages values, size_t group, AttentionParams params,
                Parts parts) {
  GPU_SHARED(FewShared<kHeads>, s);
  const size_t split = gpu::BlockX(), r = gpu::BlockZ(), heads = static_cast<size_t>(params.heads);
  const size_t chunks = (group + kHeads - 1) / kHeads, kv_head = gpu::BlockY() / chunks,
               within = gpu::BlockY() % chunks * kHeads, first_head = kv_head * group + within;
  const size_t count = group - within < kHeads ? group - within : kHeads;  // of query heads
  const KvRow row = rows[r];
  const Seen seen = SeenBy(row, params);
  const size_t first = split * kSplit, last = first + kSplit;
  if (first >= seen.end || last <= seen.begin) return;  // the whole block
  for (size_t i = gpu::Thread(); i < kHeads * keys.dim; i += kThreads) {
    const size_t h = i / keys.dim, d = i % keys.dim;
    s.q[h][d] = h < count ? q[(r * heads + first_head + h) * keys.dim + d] : 0.0f;
  }
  gpu::SyncBlock();
  // Scores. A warp has four pages; eight lanes have a page: some the parts of a line, the others other elements.
  constexpr int kPositions = PositionsOf(kType);
  constexpr unsigned kLineLanes = kPage / kPositions;
  const unsigned lane = gpu::Lane(), part = lane % kLineLanes, slice = lane % 8 / kLineLanes;
  const size_t mine = gpu::Warp() * 64 + lane / 8 * kPage + part * kPositions;  // in the split
  float sums[kHeads][kPositions] = {};
  if (first + mine < seen.end && first + mine + kPositions > seen.begin)
    Multiply<kType, kHeads>(s, keys, HeadAt(keys, row, first + mine, kv_head), part, slice, sums);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      float sum = sums[h][i];
#pragma unroll
      for (unsigned by = kLineLanes; by < 8; by *= 2) sum = gpu::Add(sum, gpu::ShflXor(sum, by));
      if (slice == 0) s.weights[h][Slot(mine + static_cast<size_t>(i))] = sum;
    }
  }
  gpu::SyncBlock();
  // Weights: a warp has a head, a lane eight positions.
  if (gpu::Warp() < count) {
    const unsigned h = gpu::Warp();
    float scores[8], largest = -Infinity();
#pragma unroll
    for (size_t i = 0; i < 8; ++i) {
      const size_t position = first + lane * 8 + i;
      const bool sees = position >= seen.begin && position < seen.end;
      scores[i] = sees ? ScoreOf(s.weights[h][lane * 9 + i], params) : -Infinity();
      largest = scores[i] > largest ? scores[i] : largest;
    }
    largest = MaxWarp(largest);
    float total = 0;
#pragma unroll
    for (size_t i = 0; i < 8; ++i) {
      const size_t position = first + lane * 8 + i;
      const bool sees = position >= seen.begin && position < seen.end;
      const float weight = sees ? Exp(gpu::Add(scores[i], -largest)) : 0.0f;
      s.weights[h][lane * 9 + i] = weight;
      total = gpu::Add(total, weight);
    }
    total = SumWarp(total);
    if (lane == 0) {
      const size_t at = parts.At(r, first_head + h, heads, split);
      parts.largest[at] = largest;
      parts.totals[at] = total;
    }
  }
  gpu::SyncBlock();
  // Values. A thread has eight elements of every so-many-th position.
  const size_t units = parts.value_dim / kOfLane, threads = kThreads / units;  // of an element
  const size_t unit = gpu::Thread() % units, slot = gpu::Thread() / units;
  float found[kHeads][kOfLane] = {};
  if (slot < threads) {
    const size_t from = seen.begin > first ? seen.begin : first, to = seen.end < last ? seen.end : last;
    for (size_t position = from + slot; position < to; position += threads) {
      float v[kOfLane];
      LoadValues<kType>(values, HeadAt(values, row, position, kv_head), position, unit, v);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float weight = static_cast<size_t>(h) < count ? s.weights[h][Slot(position - first)] : 0.0f;
#pragma unroll
        for (size_t i = 0; i < kOfLane; ++i) found[h][i] = gpu::Fma(weight, v[i], found[h][i]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (size_t half = 0; half < 2; ++half) {
        gpu::Store(&s.sums[h][half][slot * units + unit], gpu::Float4{found[h][half * 4], found[h][half * 4 + 1],
                                                                      found[h][half * 4 + 2], found[h][half * 4 + 3]});
      }
    }
  }
  gpu::SyncBlock();
  for (size_t i = gpu::Thread(); i < count * units * 2; i += kThreads) {
    const size_t h = i / (units * 2), half = i % 2, of = i % (units * 2) / 2;
    auto sum = gpu::Load<gpu::Float4>(&s.sums[h][half][of]);
    for (size_t j = 1; j < threads; ++j) {
      const auto more = gpu::Load<gpu::Float4>(&s.sums[h][half][j * units + of]);
      sum = {gpu::Add(sum.x, more.x), gpu::Add(sum.y, more.y), gpu::Add(sum.z, more.z), gpu::Add(sum.w, more.w)};
    }
    gpu::Store(parts.sums + parts.At(r, first_head + h, heads, split) * parts.value_dim +
                   ElementOf<kType>(of, half * 4, parts.value_dim),
               sum);
  }
}

}  // namespace

bool CanAttendFew(const KvView& kv) {
  const size_t dim = static_cast<size_t>(kv.head_dim), value_dim = kv.ValueDim();
  return kv.block_size == kPage && !kv.values_in_keys && dim % 8 == 0 && dim <= kMostDim && value_dim % kOfLane == 0 &&
         value_dim / kOfLane <= kThreads;
}

void AttendFew(Stream stream, const float* q, const KvRow* rows, size_t count, const KvView& kv,
               const AttentionParams& params, const Parts& parts) {
  const size_t kv_heads = static_cast<size_t>(kv.kv_heads), group = static_cast<size_t>(params.heads) / kv_heads;
  const Pages keys = KeysOf(kv), values = ValuesOf(kv);
  WithUnrotatedKvType(kv.type, [&]<KvType kType>() {
    const auto launch = [&]<int kHeads>() {
      const gpu::Grid grid(static_cast<unsigned>(parts.splits),
                           static_cast<unsigned>(kv_heads * ((group + kHeads - 1) / kHeads)),
                           static_cast<unsigned>(count));
      GPU_LAUNCH((AttendFewKernel<kType, kHeads>), grid, 128, stream, q, rows, keys, values, group, params, parts);
    };
    if (group == 1)
      launch.template operator()<1>();
    else if (group == 2)
      launch.template operator()<2>();
    else
      launch.template operator()<kMostHeads>();
  });
}

}  // namespace gyre::cuda
