// Attention of prompts' rows by tiles of 64 rows and 64 positions (flash attention: Dao et al. 2022), on f16 or bf16 as
// the pages are. Queries and softmax weights are rounded to that type.
//
// A row's softmax goes on from tile to tile of positions, which begin at multiples of 64. A tile in which a row sees
// nothing leaves its sums as they are, so a row's bits do not depend on the rows beside it.
#include "kernels/cuda/attention/splits.cuh"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

constexpr size_t kThreads = 128, kRows = 64, kPositions = 64, kPage = 16, kPages = kPositions / kPage;

struct TileRow {
  const BlockId* table;
  uint32_t begin, end;  // what it sees
};
template <size_t kDim>
struct TileShared {
  // 16 bytes each, placed so that eight lines side by side lie in different banks.
  gpu::Uint4 keys[kPages][kDim][2];  // [page][element][half of its positions]
  gpu::Uint4 values[kPositions][kDim / 8];
  TileRow rows[kRows];
};
template <size_t kDim>
GPU_FN gpu::Uint4* KeyAt(TileShared<kDim>& s, size_t page, size_t d, size_t half) {
  return &s.keys[page][d][half ^ (d / 4 % 2)];
}
template <size_t kDim>
GPU_FN gpu::Uint4* ValueAt(TileShared<kDim>& s, size_t position, size_t chunk) {
  return &s.values[position][chunk ^ (position % 8)];
}

// The pages of a tile of positions, of which those that [begin, end) touches are read; the others become zeros.
struct TilePages {
  const BlockId* table;
  size_t first, begin, end, head;
  GPU_FN bool Has(size_t page) const { return first + page * kPage < end && first + (page + 1) * kPage > begin; }
  GPU_FN const std::byte* At(const Pages& pages, size_t page) const {
    if (!Has(page)) return pages.data;
    return pages.data + table[first / kPage + page] * pages.page_bytes + head * pages.head_bytes;
  }
};
template <size_t kDim>
GPU_FN void AskKeys(TileShared<kDim>& s, const Pages& keys, const TilePages& tile) {
#pragma unroll
  for (size_t page = 0; page < kPages; ++page) {
    const std::byte* from = tile.At(keys, page);
#pragma unroll
    for (size_t i = gpu::Thread(); i < kDim * 2; i += kThreads)
      gpu::CopyAsync16(KeyAt(s, page, i / 2, i % 2), from + i * 16, !tile.Has(page));
  }
}
template <size_t kDim>
GPU_FN void AskValues(TileShared<kDim>& s, const Pages& values, const TilePages& tile) {
#pragma unroll
  for (size_t page = 0; page < kPages; ++page) {
    const std::byte* from = tile.At(values, page);
#pragma unroll
    for (size_t i = gpu::Thread(); i < kDim * 2; i += kThreads)
      gpu::CopyAsync16(ValueAt(s, page * kPage + i / (kDim / 8), i % (kDim / 8)), from + i * 16, !tile.Has(page));
  }
}

template <bool kBf16>
GPU_FN uint32_t Pair(float low, float high) {
  return kBf16 ? gpu::ToBf16Pair(low, high) : gpu::ToHalfPair(low, high);
}
template <bool kBf16>
GPU_FN void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  if constexpr (kBf16)
    gpu::MmaBf16(c, a, b);
  else
    gpu::MmaF16(c, a, b);
}

// A warp's state for its 16 rows: lane l has rows l / 4 and l / 4 + 8.
template <size_t kDim>
struct WarpRows {
  uint32_t q[kDim / 16][4];
  float out[kDim / 8][4] = {};
  float largest[2], totals[2] = {};
};

template <size_t kDim, bool kBf16>
GPU_FN void AttendToTile(TileShared<kDim>& s, const Pages& keys, const Pages& values, const TilePages& tile,
                         const TilePages& next, const AttentionParams& params, const TileRow (&mine)[2],
                         WarpRows<kDim>* w) {
  const unsigned lane = gpu::Lane(), t = lane % 4;
  // ldmatrix: lane 8 j + i has line i of matrix j.
  const size_t line = lane % 8 + lane / 8 % 2 * 8, half = lane / 16;
  gpu::WaitAsync<1>();
  gpu::SyncBlock();  // the keys are there
  float scores[kPages][2][4] = {};
#pragma unroll
  for (size_t page = 0; page < kPages; ++page) {
#pragma unroll
    for (size_t d = 0; d < kDim; d += 16) {
      uint32_t k[4];
      gpu::LoadMatrix4Transposed(k, KeyAt(s, page, d + line, half));
      Multiply<kBf16>(scores[page][0], w->q[d / 16], k[0], k[1]);
      Multiply<kBf16>(scores[page][1], w->q[d / 16], k[2], k[3]);
    }
  }
  gpu::SyncBlock();  // all have used them
  if (next.table != nullptr) AskKeys(s, keys, next);
  gpu::CommitAsync();
#pragma unroll
  for (size_t r = 0; r < 2; ++r) {
    const auto sees = [&](size_t page, size_t n, size_t e) {
      const size_t position = tile.first + page * kPage + n * 8 + 2 * t + e;
      return position >= mine[r].begin && position < mine[r].end;
    };
    float largest = w->largest[r];
#pragma unroll
    for (size_t page = 0; page < kPages; ++page) {
#pragma unroll
      for (size_t i = 0; i < 4; ++i) {
        float& score = scores[page][i / 2][2 * r + i % 2];
        score = sees(page, i / 2, i % 2) ? ScoreOf(score, params) : -Infinity();
        largest = score > largest ? score : largest;
      }
    }
#pragma unroll
    for (unsigned by = 1; by <= 2; by *= 2) {
      const float other = gpu::ShflXor(largest, by);
      largest = other > largest ? other : largest;
    }
    // A row that has seen no position yet has sums of zero.
    const float factor = largest == w->largest[r] ? 1.0f : Exp(gpu::Add(w->largest[r], -largest));
    w->largest[r] = largest;
    float total = 0;
#pragma unroll
    for (size_t page = 0; page < kPages; ++page) {
#pragma unroll
      for (size_t i = 0; i < 4; ++i) {
        float& score = scores[page][i / 2][2 * r + i % 2];
        score = sees(page, i / 2, i % 2) ? Exp(gpu::Add(score, -largest)) : 0.0f;
        total = gpu::Add(total, score);
      }
    }
    w->totals[r] = gpu::Fma(w->totals[r], factor, total);
#pragma unroll
    for (size_t c = 0; c < kDim / 8; ++c) {
      w->out[c][2 * r] = gpu::Mul(w->out[c][2 * r], factor);
      w->out[c][2 * r + 1] = gpu::Mul(w->out[c][2 * r + 1], factor);
    }
  }
  gpu::WaitAsync<1>();
  gpu::SyncBlock();  // the values are there
#pragma unroll
  for (size_t page = 0; page < kPages; ++page) {
    const float(&p)[2][4] = scores[page];
    const uint32_t a[4] = {Pair<kBf16>(p[0][0], p[0][1]), Pair<kBf16>(p[0][2], p[0][3]), Pair<kBf16>(p[1][0], p[1][1]),
                           Pair<kBf16>(p[1][2], p[1][3])};
#pragma unroll
    for (size_t c = 0; c < kDim / 8; c += 2) {
      uint32_t v[4];
      gpu::LoadMatrix4Transposed(v, ValueAt(s, page * kPage + line, c + half));
      Multiply<kBf16>(w->out[c], a, v[0], v[1]);
      Multiply<kBf16>(w->out[c + 1], a, v[2], v[3]);
    }
  }
  gpu::SyncBlock();  // all have used them
  if (next.table != nullptr) AskValues(s, values, next);
  gpu::CommitAsync();
}

// Grid (heads, rows / 64). Rows of different sequences may meet in a block, which then takes one sequence after the
// other.
template <size_t kDim, bool kBf16>
GPU_KERNEL(128, 2)
AttendTilesKernel(const float* q, const KvRow* rows, size_t count, Pages keys, Pages values, size_t group,
                  AttentionParams params, float* out) {
  GPU_SHARED(TileShared<kDim>, s);
  const size_t head = gpu::BlockX(), first = size_t{gpu::BlockY()} * kRows, heads = static_cast<size_t>(params.heads);
  const size_t here = count - first < kRows ? count - first : kRows;
  for (size_t i = gpu::Thread(); i < kRows; i += kThreads) {
    const KvRow row = rows[first + (i < here ? i : here - 1)];
    const Seen seen = SeenBy(row, params);
    s.rows[i].table = row.table;
    s.rows[i].begin = static_cast<uint32_t>(seen.begin);
    s.rows[i].end = static_cast<uint32_t>(seen.end);
  }
  const unsigned g = gpu::Lane() / 4, t = gpu::Lane() % 4;
  WarpRows<kDim> w;
#pragma unroll
  for (size_t r = 0; r < 2; ++r) {
    const size_t row = gpu::Warp() * 16 + g + r * 8;
    const float* from = q + ((first + (row < here ? row : here - 1)) * heads + head) * kDim + 2 * t;
#pragma unroll
    for (size_t d = 0; d < kDim; d += 16) {
      const auto low = gpu::Load<gpu::Float2>(from + d), high = gpu::Load<gpu::Float2>(from + d + 8);
      w.q[d / 16][r] = Pair<kBf16>(low.x, low.y);
      w.q[d / 16][r + 2] = Pair<kBf16>(high.x, high.y);
    }
    w.largest[r] = -Infinity();
  }
  gpu::SyncBlock();
  for (size_t from = 0; from < here;) {
    // The rows from .. to - 1 are of one sequence; to the others all is hidden.
    const BlockId* table = s.rows[from].table;
    size_t to = from, begin = s.rows[from].begin, end = s.rows[from].end;
    for (; to < here && s.rows[to].table == table; ++to) {
      begin = s.rows[to].begin < begin ? s.rows[to].begin : begin;
      end = s.rows[to].end > end ? s.rows[to].end : end;
    }
    TileRow mine[2];
#pragma unroll
    for (size_t r = 0; r < 2; ++r) {
      const size_t row = gpu::Warp() * 16 + g + r * 8;
      const bool takes_part = row >= from && row < to;
      mine[r] = {table, takes_part ? s.rows[row].begin : 0u, takes_part ? s.rows[row].end : 0u};
    }
    TilePages tile{table, begin / kPositions * kPositions, begin, end, head / group};
    AskKeys(s, keys, tile);
    gpu::CommitAsync();
    AskValues(s, values, tile);
    gpu::CommitAsync();
    while (tile.first < end) {
      TilePages next = tile;
      next.first += kPositions;
      if (next.first >= end) next.table = nullptr;
      AttendToTile<kDim, kBf16>(s, keys, values, tile, next, params, mine, &w);
      tile.first = next.first;
    }
    from = to;
  }
#pragma unroll
  for (size_t r = 0; r < 2; ++r) {
    float total = w.totals[r], factor = 1;
    total = gpu::Add(total, gpu::ShflXor(total, 1));
    total = gpu::Add(total, gpu::ShflXor(total, 2));
    if (params.sinks != nullptr) {
      const float sink = params.sinks[head], largest = w.largest[r] > sink ? w.largest[r] : sink;
      factor = Exp(gpu::Add(w.largest[r], -largest));
      total = gpu::Fma(total, factor, Exp(gpu::Add(sink, -largest)));
    }
    const size_t row = gpu::Warp() * 16 + g + r * 8;
    if (row >= here) continue;
    float* to = out + ((first + row) * heads + head) * kDim + 2 * t;
#pragma unroll
    for (size_t c = 0; c < kDim / 8; ++c) {
      gpu::Store(to + c * 8, gpu::Float2{gpu::Div(gpu::Mul(w.out[c][2 * r], factor), total),
                                         gpu::Div(gpu::Mul(w.out[c][2 * r + 1], factor), total)});
    }
  }
}

}  // namespace

bool CanAttendTiles(const KvView& kv, const AttentionParams& params) {
  return params.arithmetic == Arithmetic::kPrefill && (kv.type == KvType::kF16 || kv.type == KvType::kBf16) &&
         kv.block_size == kPage && !kv.values_in_keys && (kv.head_dim == 64 || kv.head_dim == 128) &&
         kv.ValueDim() == static_cast<size_t>(kv.head_dim);
}

void AttendTiles(Stream stream, const float* q, const KvRow* rows, size_t count, const KvView& kv,
                 const AttentionParams& params, float* out) {
  if (count == 0) return;
  const Pages keys = KeysOf(kv), values = ValuesOf(kv);
  const size_t group = static_cast<size_t>(params.heads / kv.kv_heads);
  // A grid has at most 65,535 blocks along y: 4 million rows.
  const gpu::Grid grid(static_cast<unsigned>(params.heads), Blocks(count, kRows));
  const auto launch = [&]<size_t kDim>() {
    if (kv.type == KvType::kBf16)
      GPU_LAUNCH((AttendTilesKernel<kDim, true>), grid, 128, stream, q, rows, count, keys, values, group, params, out);
    else
      GPU_LAUNCH((AttendTilesKernel<kDim, false>), grid, 128, stream, q, rows, count, keys, values, group, params, out);
  };
  if (kv.head_dim == 64)
    launch.template operator()<64>();
  else
    launch.template operator()<128>();
}

}  // namespace gyre::cuda
