// Runs GPU kernels on the CPU with the semantics of a GPU: docs/cuda.md. Each thread of a block is a fiber; barriers,
// shuffles and matrix instructions are meetings of fibers. Where kChecked, every load and store of a kernel is checked
// (bounds, alignment, initialization, races, pointers to the host's memory), and can be counted.
//
// Threads: launches run one at a time, on the thread that asks for them; all functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gyre::simt {

// Whether this build sees the loads and stores of kernels.
#if defined(GYRE_SIMT_CHECKED)
inline constexpr bool kChecked = true;
#else
inline constexpr bool kChecked = false;
#endif

// A mistake that a GPU answers with wrong numbers, an error or nothing at all. The text has the sentence, the thread
// and the line.
class Fault : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// In which order the threads of a block run between two meetings. A right kernel does not depend on it.
enum class Order : uint8_t { kRising, kFalling, kRandom };
void SetOrder(Order order, uint64_t seed = 0);

// Global memory, at addresses that the host must not touch: a host that reads or writes there crashes. Fresh memory
// holds garbage, which no kernel may read; from CopyIn on its bytes count as written. 0 bytes are allowed. Throws
// std::bad_alloc.
void* Allocate(size_t bytes);
// The same, but it holds zeros, which kernels may read.
void* AllocateZeros(size_t bytes);
void Free(void* memory) noexcept;
// Throw Fault if the bytes are not all within one piece of global memory, or (CopyOut) if nobody wrote some of them.
void CopyIn(const void* host, void* device, size_t bytes);
void CopyOut(const void* device, void* host, size_t bytes);
// Within global memory; what nobody wrote stays so. The two do not overlap.
void Copy(const void* from, void* to, size_t bytes);
void Zero(void* device, size_t bytes);

// What warps asked memory for. A unit is a sector of 32 bytes of global memory, or one pass over the 32 banks of shared
// memory; `least` units would have held the same bytes side by side.
struct Traffic {
  uint64_t requests = 0, units = 0, least = 0;
  double excess() const { return least == 0 ? 1 : static_cast<double>(units) / static_cast<double>(least); }
};
struct Counts {
  Traffic loads, stores, shared;
};
// Counts the accesses of all launches while it lives. REQUIRES: kChecked, and only one lives.
class Count {
 public:
  Count();
  ~Count();
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

  Counts counts() const;
  // The lines of source with the most units beyond the least, worst first: a line each.
  std::string Worst(size_t lines) const;
};

}  // namespace gyre::simt
