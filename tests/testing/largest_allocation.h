// largest_allocation.cc replaces operator new of the whole test program by one that remembers the largest request.
#pragma once

#include <atomic>
#include <cstddef>

namespace gyre::testing {

inline std::atomic<size_t> largest_allocation{0};
// The bytes that reading a damaged file may allocate besides its size: facts of as many layers as a file may say that
// it has.
inline constexpr size_t kSlack = 2 << 20;

// The largest single allocation of `work`.
template <typename Work>
size_t LargestAllocation(Work work) {
  largest_allocation = 0;
  work();
  return largest_allocation;
}

}  // namespace gyre::testing
