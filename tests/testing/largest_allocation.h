// Replaces operator new of the whole test program by one that remembers the largest request. Include in one file.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace gyre::testing {

inline std::atomic<size_t> largest_allocation{0};

// What `work` asks for at most in one piece.
template <typename Work>
size_t LargestAllocation(Work work) {
  largest_allocation = 0;
  work();
  return largest_allocation;
}

inline void* Remembered(size_t n) noexcept {
  largest_allocation = std::max<size_t>(largest_allocation, n);
  return std::malloc(std::max<size_t>(n, 1));
}
inline void* OrThrow(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace gyre::testing

// Not inlined: gcc would see free() called on what its own operator new returned.
[[gnu::noinline]] void* operator new(size_t n) {
  return gyre::testing::OrThrow(gyre::testing::Remembered(n));
}
[[gnu::noinline]] void* operator new[](size_t n) {
  return gyre::testing::OrThrow(gyre::testing::Remembered(n));
}
[[gnu::noinline]] void* operator new(size_t n, const std::nothrow_t&) noexcept {
  return gyre::testing::Remembered(n);
}
[[gnu::noinline]] void* operator new[](size_t n, const std::nothrow_t&) noexcept {
  return gyre::testing::Remembered(n);
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, const std::nothrow_t&) noexcept {
  std::free(p);
}
