// Small kernels for the emulator's own tests, right and with planted mistakes. Each launcher takes device memory.
#pragma once

#include <cstdint>

namespace gyre::simt {

enum class Mistake : uint8_t {
  kNone,
  kNoBarrier,
  kWarpBarrier,     // where the block's is needed
  kOneTooFar,       // an element, a part, a group of copies
  kSwapped,         // the halves of a fragment
  kOnlyAShuffle,    // where a barrier of the warp is needed
  kOtherWarp,       // its word, with only a barrier of the warp
  kInBranch,        // what all lanes or threads must reach
  kReturned,        // some threads, before the others' barrier
  kReadOtherBlock,  // in the same launch
};

// out[0] = sum of x [256]: shuffles, then eight partial sums in shared memory.
void SumBlock(Mistake mistake, const float* x, float* out);
// out[i] = 2 x[i] for n elements.
void Double(Mistake mistake, const float* x, float* out, int n);
// parts[i] = i for the first `used`; out[0] = their sum, by another launch.
void JoinParts(Mistake mistake, float* parts, int used, float* out);
// out[t] = the word of another thread, through shared memory; 64 threads.
void Exchange64(Mistake mistake, const uint32_t* x, uint32_t* out);
// The same for a softmax: out[0..31] = the sum of all weights exp2(x[lane]), by each lane; one warp.
void SumWeights(Mistake mistake, const float* x, float* out);
// out [64] words from x [64][4] words through asynchronous copies: word 0 of the piece of thread t ^ 32.
void CopyPieces(Mistake mistake, const uint32_t* x, uint32_t* out);
// Zeros in place of the second half of x [64][4].
void CopyZeros(const uint32_t* x, uint32_t* out);
// Lanes of a warp meet in a branch, threads of a block at a barrier.
void MeetInBranch(Mistake mistake, float* out);
void BarrierInBranch(Mistake mistake, float* out);
// Two blocks: out[t] = the number of the block, for 64 or (right) 128 places.
void TwoBlocks(Mistake mistake, float* out);
// out[t] = the word at x + stride * t bytes.
void ReadBytes(const uint8_t* x, uint32_t* out, int stride);
// out[t] = x[t * stride] for one warp; what is loaded and stored by one request.
void ReadStrided(const float* x, float* out, int stride);
// The same through shared memory: lane l reads word l * stride.
void ReadSharedStrided(float* out, int stride);
// counts[x[i] % 8] += 1, for n elements by blocks of 64; with kReadOtherBlock all blocks but the first read instead.
void Histogram(Mistake mistake, const uint32_t* x, uint32_t* counts, int n);
// tickets[t] = the number of threads that came before thread t, of 64.
void Tickets(uint32_t* counter, uint32_t* tickets);
// A pointer to a variable of this program, and a write to a table of constants.
void ReadHostVariable(float* out);
void WriteConstant();
void ReadConstant(uint32_t* out);
// More shared memory than a block has.
void TooMuchShared(float* out);
// More threads than a block has.
void TooManyThreads(float* out);

// c [16][8] = a [16][depth] * b [8][depth] transposed, by one warp: LoadMatrix4 and a product of matrices. Depth is 16
// for elements of two bytes, 32 for those of one.
enum class Element : uint8_t { kBf16, kF16, kInt8, kFp8 };
void MultiplyTile(Mistake mistake, Element element, const void* a, const void* b, void* c);
// The 16 x 16 elements of two bytes, transposed, by LoadMatrix4Transposed.
void TransposeTile(const uint16_t* x, uint16_t* out);

}  // namespace gyre::simt
