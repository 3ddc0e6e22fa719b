#include "tests/testing/simt/planted.h"

#include "kernels/cuda/gpu.cuh"

namespace gyre::simt {
namespace {

GPU_FN float SumWarp(float v) {
  for (unsigned by = 16; by > 0; by /= 2) v = gpu::Add(v, gpu::ShflXor(v, by));
  return v;
}

struct Sums {
  float of_warp[8];
};
GPU_KERNEL(256, 1) SumBlockKernel(Mistake mistake, const float* x, float* out) {
  GPU_SHARED(Sums, s);
  const float sum = SumWarp(x[gpu::Thread()]);
  if (gpu::Lane() == 0) s.of_warp[gpu::Warp()] = sum;
  if (mistake == Mistake::kNone) gpu::SyncBlock();
  if (mistake == Mistake::kWarpBarrier) gpu::SyncWarp();
  float all = 0;
  for (int i = 0; i < 8; ++i) all = gpu::Add(all, s.of_warp[i]);
  if (gpu::Thread() == 0) out[0] = all;
}

GPU_KERNEL(64, 1) DoubleKernel(Mistake mistake, const float* x, float* out, int n) {
  const int end = mistake == Mistake::kOneTooFar ? n + 1 : n;
  for (int i = static_cast<int>(gpu::Thread()); i < end; i += 64) out[i] = 2 * x[i];
}

GPU_KERNEL(32, 1) MakePartsKernel(float* parts, int used) {
  const int i = static_cast<int>(gpu::Thread());
  if (i < used) parts[i] = static_cast<float>(i);
}
GPU_KERNEL(32, 1) JoinPartsKernel(const float* parts, int used, float* out) {
  float sum = 0;
  for (int i = 0; i < used; ++i) sum = gpu::Add(sum, parts[i]);
  if (gpu::Thread() == 0) out[0] = sum;
}

struct Words {
  uint32_t of_thread[64];
};
GPU_KERNEL(64, 1) Exchange64Kernel(Mistake mistake, const uint32_t* x, uint32_t* out) {
  GPU_SHARED(Words, s);
  const unsigned t = gpu::Thread();
  s.of_thread[t] = x[t];
  if (mistake == Mistake::kOnlyAShuffle) (void)gpu::ShflXor(t, 1u);
  if (mistake == Mistake::kNone || mistake == Mistake::kOtherWarp) gpu::SyncWarp();
  out[t] = s.of_thread[mistake == Mistake::kOtherWarp ? t ^ 32 : t ^ 1];
}

struct Weights {
  float of_lane[32];
};
GPU_KERNEL(32, 1) SumWeightsKernel(Mistake mistake, const float* x, float* out) {
  GPU_SHARED(Weights, s);
  const float total = SumWarp(x[gpu::Lane()]);
  s.of_lane[gpu::Lane()] = gpu::Div(x[gpu::Lane()], total);
  const float check = SumWarp(s.of_lane[gpu::Lane()]);
  if (mistake != Mistake::kNoBarrier) gpu::SyncBlock();
  float sum = gpu::Add(check, -check);
  for (int i = 0; i < 32; ++i) sum = gpu::Add(sum, s.of_lane[i]);
  out[gpu::Lane()] = sum;
}

struct alignas(16) Piece {
  uint32_t word[4];
};
struct Pieces {
  Piece of_thread[64];
};
GPU_KERNEL(64, 1) CopyPiecesKernel(Mistake mistake, const uint32_t* x, uint32_t* out) {
  GPU_SHARED(Pieces, s);
  const unsigned t = gpu::Thread();
  gpu::CopyAsync16(&s.of_thread[t], x + 4 * t);
  gpu::CommitAsync();
  mistake == Mistake::kOneTooFar ? gpu::WaitAsync<1>() : gpu::WaitAsync<0>();
  if (mistake != Mistake::kNoBarrier) gpu::SyncBlock();
  out[t] = s.of_thread[t ^ 32].word[0];
}
GPU_KERNEL(64, 1) CopyZerosKernel(const uint32_t* x, uint32_t* out) {
  GPU_SHARED(Pieces, s);
  const unsigned t = gpu::Thread();
  gpu::CopyAsync16(&s.of_thread[t], x + 4 * t, t >= 32);
  gpu::CommitAsync();
  gpu::WaitAsync<0>();
  out[t] = s.of_thread[t].word[0];
}

GPU_KERNEL(64, 1) MeetInBranchKernel(Mistake mistake, float* out) {
  float v = static_cast<float>(gpu::Lane());
  if (mistake == Mistake::kReturned && gpu::Lane() >= 16) return;
  if (mistake != Mistake::kInBranch || gpu::Lane() < 16)
    v = gpu::ShflXor(v, 1);
  else
    (void)gpu::Ballot(true);
  out[gpu::Thread()] = v;
}
GPU_KERNEL(64, 1) BarrierInBranchKernel(Mistake mistake, float* out) {
  if (mistake == Mistake::kReturned && gpu::Thread() < 32) return;
  gpu::SyncBlock();
  out[gpu::Thread()] = 1;
}

GPU_KERNEL(64, 1) TwoBlocksKernel(Mistake mistake, float* out) {
  out[gpu::Thread() + (mistake == Mistake::kNone ? 64 * gpu::BlockX() : 0)] = static_cast<float>(gpu::BlockX());
}

GPU_KERNEL(32, 1) ReadBytesKernel(const uint8_t* x, uint32_t* out, int stride) {
  out[gpu::Thread()] = *reinterpret_cast<const uint32_t*>(x + static_cast<size_t>(stride) * gpu::Thread());
}
GPU_KERNEL(32, 1) ReadStridedKernel(const float* x, float* out, int stride) {
  out[gpu::Thread()] = x[static_cast<size_t>(stride) * gpu::Thread()];
}
struct Floats {
  float word[32 * 33];
};
GPU_KERNEL(32, 1) ReadSharedStridedKernel(float* out, int stride) {
  GPU_SHARED(Floats, s);
  for (unsigned i = gpu::Thread(); i < 32 * 33; i += 32) s.word[i] = static_cast<float>(i);
  gpu::SyncBlock();
  out[gpu::Thread()] = s.word[static_cast<size_t>(stride) * gpu::Thread()];
}

GPU_KERNEL(64, 1) HistogramKernel(Mistake mistake, const uint32_t* x, uint32_t* counts, int n) {
  const int i = static_cast<int>(gpu::BlockX() * 64 + gpu::Thread());
  if (i >= n) return;
  if (mistake == Mistake::kReadOtherBlock && gpu::BlockX() > 0)
    counts[8 + i] = counts[x[i] % 8];
  else
    gpu::AtomicAdd(counts + x[i] % 8, 1u);
}
GPU_KERNEL(64, 1) TicketsKernel(uint32_t* counter, uint32_t* tickets) {
  tickets[gpu::Thread()] = gpu::AtomicAdd(counter, 1u);
}

GPU_TABLE uint32_t kTable[4] = {2, 3, 5, 7};
GPU_KERNEL(32, 1) ReadThroughKernel(const float* x, float* out) { out[gpu::Thread()] = *x; }
GPU_KERNEL(32, 1) WriteThroughKernel(uint32_t* x) { x[gpu::Thread() % 4] = 0; }
GPU_KERNEL(32, 1) ReadConstantKernel(uint32_t* out) { out[gpu::Thread()] = kTable[gpu::Thread() % 4]; }

#if defined(GYRE_SIMT)  // nvcc refuses these
float host_variable = 1;
struct TooMuch {
  float of_thread[20000];
};
GPU_KERNEL(32, 1) TooMuchSharedKernel(float* out) {
  GPU_SHARED(TooMuch, s);
  s.of_thread[gpu::Thread()] = 1;
  out[gpu::Thread()] = s.of_thread[gpu::Thread()];
}
#endif
GPU_KERNEL(32, 1) OnesKernel(float* out) { out[gpu::Thread()] = 1; }

// Rows of 16 elements of two bytes, or of 32 of one: 32 bytes.
struct alignas(16) Tiles {
  uint8_t a[16][32], b[16][32];
};
GPU_KERNEL(32, 1) MultiplyTileKernel(Mistake mistake, Element element, const uint8_t* a, const uint8_t* b, void* c) {
  GPU_SHARED(Tiles, s);
  const unsigned lane = gpu::Lane();
  gpu::Store(&s.a[lane / 2][lane % 2 * 16], gpu::LoadConstant16(a + 16 * lane));
  // B has 8 rows: the second half of its matrices is not used.
  gpu::Store(&s.b[lane / 2][lane % 2 * 16], gpu::LoadConstant16(b + 16 * (lane % 16)));
  gpu::SyncWarp();
  uint32_t fa[4], fb[4];
  gpu::LoadMatrix4(fa, &s.a[lane % 16][lane / 16 * 16]);
  gpu::LoadMatrix4(fb, &s.b[lane % 16][lane / 16 * 16]);
  const bool swapped = mistake == Mistake::kSwapped;
  const uint32_t halves[2] = {swapped ? fb[2] : fb[0], swapped ? fb[0] : fb[2]};
  float sums[4] = {};
  int whole[4] = {};
  switch (element) {
    case Element::kBf16: gpu::MmaBf16(sums, fa, halves); break;
    case Element::kF16: gpu::MmaF16(sums, fa, halves); break;
    case Element::kInt8: gpu::MmaInt8(whole, fa, halves); break;
    case Element::kFp8: gpu::MmaFp8(sums, fa, halves); break;
  }
  for (unsigned i = 0; i < 4; ++i) {
    const size_t at = (lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2;
    if (element == Element::kInt8)
      static_cast<int*>(c)[at] = whole[i];
    else
      static_cast<float*>(c)[at] = sums[i];
  }
}

struct alignas(16) Square {
  uint16_t row[16][16];
};
GPU_KERNEL(32, 1) TransposeTileKernel(const uint16_t* x, uint16_t* out) {
  GPU_SHARED(Square, s);
  const unsigned lane = gpu::Lane(), g = lane / 4, t = 2 * (lane % 4);
  gpu::Store(&s.row[lane / 2][lane % 2 * 8], gpu::LoadConstant16(x + 8 * lane));
  gpu::SyncWarp();
  uint32_t r[4];
  gpu::LoadMatrix4Transposed(r, &s.row[lane % 16][lane / 16 * 8]);
  // Matrix j holds the rows 8 (j % 2) .. and the columns 8 (j / 2) .. of x.
  for (unsigned j = 0; j < 4; ++j) {
    const size_t row = g + j / 2 * 8, column = t + j % 2 * 8;
    out[row * 16 + column] = static_cast<uint16_t>(r[j]);
    out[row * 16 + column + 1] = static_cast<uint16_t>(r[j] >> 16);
  }
}

}  // namespace

void SumBlock(Mistake mistake, const float* x, float* out) {
  GPU_LAUNCH(SumBlockKernel, 1, 256, nullptr, mistake, x, out);
}
void Double(Mistake mistake, const float* x, float* out, int n) {
  GPU_LAUNCH(DoubleKernel, 1, 64, nullptr, mistake, x, out, n);
}
void JoinParts(Mistake mistake, float* parts, int used, float* out) {
  GPU_LAUNCH(MakePartsKernel, 1, 32, nullptr, parts, used);
  GPU_LAUNCH(JoinPartsKernel, 1, 32, nullptr, parts, mistake == Mistake::kOneTooFar ? used + 1 : used, out);
}
void Exchange64(Mistake mistake, const uint32_t* x, uint32_t* out) {
  GPU_LAUNCH(Exchange64Kernel, 1, 64, nullptr, mistake, x, out);
}
void SumWeights(Mistake mistake, const float* x, float* out) {
  GPU_LAUNCH(SumWeightsKernel, 1, 32, nullptr, mistake, x, out);
}
void CopyPieces(Mistake mistake, const uint32_t* x, uint32_t* out) {
  GPU_LAUNCH(CopyPiecesKernel, 1, 64, nullptr, mistake, x, out);
}
void CopyZeros(const uint32_t* x, uint32_t* out) { GPU_LAUNCH(CopyZerosKernel, 1, 64, nullptr, x, out); }
void MeetInBranch(Mistake mistake, float* out) { GPU_LAUNCH(MeetInBranchKernel, 1, 64, nullptr, mistake, out); }
void BarrierInBranch(Mistake mistake, float* out) { GPU_LAUNCH(BarrierInBranchKernel, 1, 64, nullptr, mistake, out); }
void TwoBlocks(Mistake mistake, float* out) { GPU_LAUNCH(TwoBlocksKernel, 2, 64, nullptr, mistake, out); }
void ReadBytes(const uint8_t* x, uint32_t* out, int stride) {
  GPU_LAUNCH(ReadBytesKernel, 1, 32, nullptr, x, out, stride);
}
void ReadStrided(const float* x, float* out, int stride) {
  GPU_LAUNCH(ReadStridedKernel, 1, 32, nullptr, x, out, stride);
}
void ReadSharedStrided(float* out, int stride) { GPU_LAUNCH(ReadSharedStridedKernel, 1, 32, nullptr, out, stride); }
void Histogram(Mistake mistake, const uint32_t* x, uint32_t* counts, int n) {
  GPU_LAUNCH(HistogramKernel, static_cast<unsigned>(n + 63) / 64, 64, nullptr, mistake, x, counts, n);
}
void Tickets(uint32_t* counter, uint32_t* tickets) { GPU_LAUNCH(TicketsKernel, 1, 64, nullptr, counter, tickets); }
#if defined(GYRE_SIMT)
void ReadHostVariable(float* out) { GPU_LAUNCH(ReadThroughKernel, 1, 32, nullptr, &host_variable, out); }
void WriteConstant() { GPU_LAUNCH(WriteThroughKernel, 1, 32, nullptr, const_cast<uint32_t*>(kTable)); }
void TooMuchShared(float* out) { GPU_LAUNCH(TooMuchSharedKernel, 1, 32, nullptr, out); }
#endif
void ReadConstant(uint32_t* out) { GPU_LAUNCH(ReadConstantKernel, 1, 32, nullptr, out); }
void TooManyThreads(float* out) { GPU_LAUNCH(OnesKernel, 1, 1056, nullptr, out); }
void MultiplyTile(Mistake mistake, Element element, const void* a, const void* b, void* c) {
  GPU_LAUNCH(MultiplyTileKernel, 1, 32, nullptr, mistake, element, static_cast<const uint8_t*>(a),
             static_cast<const uint8_t*>(b), c);
}
void TransposeTile(const uint16_t* x, uint16_t* out) { GPU_LAUNCH(TransposeTileKernel, 1, 32, nullptr, x, out); }

}  // namespace gyre::simt
