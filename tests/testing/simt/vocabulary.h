// The vocabulary of kernels/cuda/gpu.cuh, emulated. What each function does is said there.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "kernels/cuda/step_log.h"

struct CUstream_st;

#define GPU_KERNEL(threads, blocks) __attribute__((noinline)) void
#define GPU_FN inline __attribute__((always_inline))
#define GPU_TABLE static const
#define GPU_SHARED(Layout, name) Layout& name = *static_cast<Layout*>(gyre::gpu::SharedMemory(sizeof(Layout)))
#define GPU_LAUNCH(kernel, grid, threads, stream, ...) \
  gyre::gpu::Launch((grid), (threads), (stream), (kernel), __VA_ARGS__)

namespace gyre::gpu {

struct Grid {
  unsigned x, y, z;
  Grid(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) Float2 {
  float x, y;
};
struct alignas(16) Float4 {
  float x, y, z, w;
};
struct alignas(8) Uint2 {
  uint32_t x, y;
};
struct alignas(16) Uint4 {
  uint32_t x, y, z, w;
};

unsigned Thread();
unsigned BlockX();
unsigned BlockY();
unsigned BlockZ();

void SyncBlock();
void SyncWarp();
uint32_t ShflBits(uint32_t v, unsigned lane);
uint64_t ShflBits(uint64_t v, unsigned lane);
template <typename T>
GPU_FN T Shfl(T v, unsigned lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Word = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return __builtin_bit_cast(T, ShflBits(__builtin_bit_cast(Word, v), lane));
}
template <typename T>
GPU_FN T ShflXor(T v, unsigned lanes) {
  return Shfl(v, Thread() % 32 ^ lanes);
}
uint32_t Ballot(bool v);

GPU_FN float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GPU_FN double Fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
GPU_FN float Add(float a, float b) { return a + b; }
GPU_FN double Add(double a, double b) { return a + b; }
GPU_FN float Mul(float a, float b) { return a * b; }
GPU_FN double Mul(double a, double b) { return a * b; }
GPU_FN float Div(float a, float b) { return a / b; }
GPU_FN double Div(double a, double b) { return a / b; }
GPU_FN float Sqrt(float a) { return std::sqrt(a); }
GPU_FN double Sqrt(double a) { return std::sqrt(a); }
int Nearest(float a);
GPU_FN float Rint(float a) { return std::nearbyint(a); }
GPU_FN double Rint(double a) { return std::nearbyint(a); }
GPU_FN uint32_t Bits(float a) { return __builtin_bit_cast(uint32_t, a); }
GPU_FN float OfBits(uint32_t a) { return __builtin_bit_cast(float, a); }
GPU_FN uint64_t Bits(double a) { return __builtin_bit_cast(uint64_t, a); }
GPU_FN double OfBits(uint64_t a) { return __builtin_bit_cast(double, a); }
float OfHalf(uint16_t h);
uint16_t ToHalf(float f);
float OfBf16(uint16_t h);
uint16_t ToBf16(float f);
GPU_FN int Dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
}
GPU_FN uint32_t PermuteBytes(uint32_t low, uint32_t high, uint32_t which) {
  const uint64_t both = low | uint64_t{high} << 32;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
  return out;
}
GPU_FN uint32_t ToBf16Pair(float low, float high) { return ToBf16(low) | static_cast<uint32_t>(ToBf16(high)) << 16; }
GPU_FN uint32_t ToHalfPair(float low, float high) { return ToHalf(low) | static_cast<uint32_t>(ToHalf(high)) << 16; }

// Tells the checks of an access that the compiler would split, or that is no plain load or store; and copies unseen.
enum class Kind : uint8_t { kLoad, kStore, kAtomic };
void Announce(const void* p, size_t bytes, Kind kind);
void Move(const void* from, void* to, size_t bytes);
template <typename T>
GPU_FN T Load(const void* p) {
  Announce(p, sizeof(T), Kind::kLoad);
  T v;
  Move(p, &v, sizeof(T));
  return v;
}
template <typename T>
GPU_FN void Store(void* p, T v) {
  Announce(p, sizeof(T), Kind::kStore);
  Move(&v, p, sizeof(T));
}
GPU_FN Uint4 LoadConstant16(const void* p) { return Load<Uint4>(p); }

uint32_t AtomicAdd(uint32_t* p, uint32_t v);
uint64_t AtomicAdd(uint64_t* p, uint64_t v);
uint32_t AtomicMax(uint32_t* p, uint32_t v);

void CopyAsync16(void* shared, const void* global, bool zeros = false);
void CommitAsync();
void WaitAsyncGroups(int left);
template <int kGroupsLeft>
GPU_FN void WaitAsync() {
  WaitAsyncGroups(kGroupsLeft);
}

void LoadMatrix4(uint32_t (&r)[4], const void* row);
void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row);
void MmaBf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void MmaF16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void MmaInt8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
GPU_FN void MmaInt8Half(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) { MmaInt8(c, {a0, a1, 0, 0}, {b, 0}); }
void MmaFp8(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

void* SharedMemory(size_t bytes);
// A launch, with the kernel and its arguments in one struct.
struct Call {
  const void* arguments;
  size_t bytes;
  void (*run)(const void* arguments);
  const void* (*copy)(const void* arguments);
  void (*free)(const void* copy);
};
// Runs it now, in the order of the stream, or with the step that is logged.
void Run(const Grid& grid, unsigned threads, CUstream_st* stream, const Call& call);
template <typename... P>
struct Arguments {
  void (*kernel)(P...);
  std::tuple<P...> of_kernel;

  static const Arguments* Of(const void* p) { return static_cast<const Arguments*>(p); }
  static void Run(const void* p) { std::apply(Of(p)->kernel, Of(p)->of_kernel); }
  static const void* Copy(const void* p) { return new Arguments(*Of(p)); }
  static void Free(const void* p) { delete Of(p); }
};
template <typename... P, typename... A>
void Launch(const Grid& grid, unsigned threads, CUstream_st* stream, void (*kernel)(P...), const A&... a) {
  using All = Arguments<P...>;
  const All all{kernel, {P(a)...}};
  if (cuda::StepLog* const log = stream == nullptr ? nullptr : cuda::StepLog::Of(stream)) {
    log->Tell(kernel);
    log->Tell(grid);
    log->Tell(threads);
    std::apply([log](const P&... p) { (log->Tell(p), ...); }, all.of_kernel);
  }
  Run(grid, threads, stream, {&all, sizeof all, All::Run, All::Copy, All::Free});
}

}  // namespace gyre::gpu
