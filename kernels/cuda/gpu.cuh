// The vocabulary of GPU kernels: docs/cuda.md. nvcc maps it to CUDA; any other compiler maps it to the emulator
// (tests/testing/simt), which runs the same source on the CPU. Kernels use nothing of CUDA that is not named here, and
// floating-point operations whose rounding matters by name: Fma, Add, Mul.
//
// All threads of a block meet at SyncBlock. All 32 lanes of a warp meet at SyncWarp, Shfl, ShflXor, Ballot, LoadMatrix4
// and the products of matrices. Only SyncBlock, and within a warp SyncWarp, order accesses to memory.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <tuple>

#include "kernels/cuda/step_log.h"

// A kernel for blocks of so many threads, of which a multiprocessor should hold so many.
#define GPU_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define GPU_FN __device__ __forceinline__
// A table of constants.
#define GPU_TABLE static __device__ const
// The block's shared memory, one for each kernel. It holds nothing at first.
#define GPU_SHARED(Layout, name)                                        \
  __shared__ __align__(128) unsigned char name##_bytes[sizeof(Layout)]; \
  Layout& name = *reinterpret_cast<Layout*>(name##_bytes)
#define GPU_LAUNCH(kernel, grid, threads, stream, ...) \
  gyre::gpu::Launch((kernel), (grid), (threads), (stream), __VA_ARGS__)

namespace gyre::gpu {

using Grid = dim3;
using Float2 = float2;
using Float4 = float4;
using Uint2 = uint2;
using Uint4 = uint4;

// Launches now, or with the step that is logged.
template <typename... P, typename... A>
void Launch(void (*kernel)(P...), Grid grid, unsigned threads, cudaStream_t stream, const A&... a) {
  cuda::StepLog* const log = cuda::StepLog::Of(stream);
  if (log == nullptr) {
    kernel<<<grid, threads, 0, stream>>>(P(a)...);
    return;
  }
  log->Tell(kernel);
  log->Tell(grid);
  log->Tell(threads);
  (log->Tell(P(a)), ...);
  log->Add([kernel, grid, threads, stream, all = std::tuple<P...>(P(a)...)] {
    std::apply([&](const P&... p) { kernel<<<grid, threads, 0, stream>>>(p...); }, all);
  });
}

GPU_FN unsigned Thread() { return threadIdx.x; }
GPU_FN unsigned BlockX() { return blockIdx.x; }
GPU_FN unsigned BlockY() { return blockIdx.y; }
GPU_FN unsigned BlockZ() { return blockIdx.z; }

GPU_FN void SyncBlock() { __syncthreads(); }
GPU_FN void SyncWarp() { __syncwarp(); }
// The v of another lane. T has 4 or 8 bytes.
template <typename T>
GPU_FN T Shfl(T v, unsigned lane) {
  return __shfl_sync(0xFFFFFFFFu, v, static_cast<int>(lane));
}
template <typename T>
GPU_FN T ShflXor(T v, unsigned lanes) {
  return __shfl_xor_sync(0xFFFFFFFFu, v, static_cast<int>(lanes));
}
// Bit l is set where lane l has true.
GPU_FN uint32_t Ballot(bool v) { return __ballot_sync(0xFFFFFFFFu, v); }

GPU_FN float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
GPU_FN double Fma(double a, double b, double c) { return __fma_rn(a, b, c); }
GPU_FN float Add(float a, float b) { return __fadd_rn(a, b); }
GPU_FN double Add(double a, double b) { return __dadd_rn(a, b); }
GPU_FN float Mul(float a, float b) { return __fmul_rn(a, b); }
GPU_FN double Mul(double a, double b) { return __dmul_rn(a, b); }
GPU_FN float Div(float a, float b) { return __fdiv_rn(a, b); }
GPU_FN double Div(double a, double b) { return __ddiv_rn(a, b); }
GPU_FN float Sqrt(float a) { return __fsqrt_rn(a); }
GPU_FN double Sqrt(double a) { return __dsqrt_rn(a); }
// To the nearest whole number, ties to even.
GPU_FN int Nearest(float a) { return __float2int_rn(a); }
GPU_FN float Rint(float a) { return rintf(a); }
GPU_FN double Rint(double a) { return rint(a); }
GPU_FN uint32_t Bits(float a) { return __float_as_uint(a); }
GPU_FN float OfBits(uint32_t a) { return __uint_as_float(a); }
GPU_FN uint64_t Bits(double a) { return static_cast<uint64_t>(__double_as_longlong(a)); }
GPU_FN double OfBits(uint64_t a) { return __longlong_as_double(static_cast<long long>(a)); }
GPU_FN float OfHalf(uint16_t h) { return __half2float(__ushort_as_half(h)); }
GPU_FN uint16_t ToHalf(float f) { return __half_as_ushort(__float2half_rn(f)); }  // NaN: 0x7FFF, as ToBf16
GPU_FN float OfBf16(uint16_t h) { return __uint_as_float(static_cast<uint32_t>(h) << 16); }
GPU_FN uint16_t ToBf16(float f) { return __bfloat16_as_ushort(__float2bfloat16_rn(f)); }
// c and the products of the four signed bytes of a and b.
GPU_FN int Dp4a(int a, int b, int c) { return __dp4a(a, b, c); }
// Four of the eight bytes of `low` and `high`: byte i is the one that bits 4 i .. 4 i + 2 of `which` name. REQUIRES:
// the bits 4 i + 3 are 0.
GPU_FN uint32_t PermuteBytes(uint32_t low, uint32_t high, uint32_t which) { return __byte_perm(low, high, which); }
// Two floats as bf16 or f16, `low` in the low half.
GPU_FN uint32_t ToBf16Pair(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}
GPU_FN uint32_t ToHalfPair(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

// One access of 8 or 16 bytes, at a multiple of them.
template <typename T>
GPU_FN T Load(const void* p) {
  return *static_cast<const T*>(p);
}
template <typename T>
GPU_FN void Store(void* p, T v) {
  *static_cast<T*>(p) = v;
}
// REQUIRES: no thread of the launch writes these bytes.
GPU_FN Uint4 LoadConstant16(const void* p) { return __ldg(static_cast<const uint4*>(p)); }

// The value before. No order follows from these.
GPU_FN uint32_t AtomicAdd(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }
GPU_FN uint64_t AtomicAdd(uint64_t* p, uint64_t v) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}
GPU_FN uint32_t AtomicMax(uint32_t* p, uint32_t v) { return atomicMax(p, v); }

GPU_FN uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
// 16 bytes on their way to shared memory, or zeros. What a thread has asked for before CommitAsync is a group; after
// WaitAsync<n> all but its last n groups are there for this thread, and after a barrier for the others.
GPU_FN void CopyAsync16(void* shared, const void* global, bool zeros = false) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)), "l"(global),
               "r"(zeros ? 0 : 16)
               : "memory");
}
GPU_FN void CommitAsync() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroupsLeft>
GPU_FN void WaitAsync() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

// Four matrices of 8 rows of 16 bytes of shared memory: lane 8 j + i gives the address of row i of matrix j, and lane l
// gets the bytes 4 (l % 4) .. + 3 of row l / 4 of each; transposed, the elements of 2 bytes in rows 2 (l % 4) and + 1
// of column l / 4.
GPU_FN void LoadMatrix4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
GPU_FN void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
// c [16][8] += a [16][k] b [k][8], k 16 of 2 bytes or 32 of one byte, in the fragments of the PTX manual (emulated:
// matrix.cc).
#define GYRE_MMA(name, type, constraint, instruction)                                            \
  GPU_FN void name(type(&c)[4], const uint32_t(&a)[4], const uint32_t(&b)[2]) {                  \
    asm("mma.sync.aligned." instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : constraint(c[0]), constraint(c[1]), constraint(c[2]), constraint(c[3])                 \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                     \
  }
GYRE_MMA(MmaBf16, float, "+f", "m16n8k16.row.col.f32.bf16.bf16.f32")
GYRE_MMA(MmaF16, float, "+f", "m16n8k16.row.col.f32.f16.f16.f32")
GYRE_MMA(MmaInt8, int, "+r", "m16n8k32.row.col.s32.s8.s8.s32")
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
GYRE_MMA(MmaFp8, float, "+f", "m16n8k32.row.col.f32.e4m3.e4m3.f32")
#else  // compute capability 8.0 has no products of 8-bit floats: no kernel for it calls this
GPU_FN void MmaFp8(float (&)[4], const uint32_t (&)[4], const uint32_t (&)[2]) { __trap(); }
#endif
#undef GYRE_MMA
// c [16][8] += a [16][16] b [16][8]: the first halves of MmaInt8's fragments.
GPU_FN void MmaInt8Half(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

}  // namespace gyre::gpu

#elif defined(GYRE_SIMT)
#include "simt/vocabulary.h"
#else
#error "GPU code is compiled by nvcc, or for the emulator: see docs/cuda.md"
#endif

namespace gyre::gpu {

GPU_FN unsigned Lane() { return Thread() % 32; }
GPU_FN unsigned Warp() { return Thread() / 32; }
GPU_FN float Abs(float a) { return OfBits(Bits(a) & 0x7FFFFFFFu); }

}  // namespace gyre::gpu
