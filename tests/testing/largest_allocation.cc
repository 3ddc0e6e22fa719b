#include "tests/testing/largest_allocation.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace gyre::testing {
namespace {

void* Remembered(size_t n) noexcept {
  largest_allocation = std::max<size_t>(largest_allocation, n);
  return std::malloc(std::max<size_t>(n, 1));
}
void* OrThrow(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace
}  // namespace gyre::testing

// It is not inlined: otherwise gcc would see free() called on the result of its own operator new.
[[gnu::noinline]] void* operator new(size_t n) { return gyre::testing::OrThrow(gyre::testing::Remembered(n)); }
[[gnu::noinline]] void* operator new[](size_t n) { return gyre::testing::OrThrow(gyre::testing::Remembered(n)); }
[[gnu::noinline]] void* operator new(size_t n, const std::nothrow_t&) noexcept { return gyre::testing::Remembered(n); }
[[gnu::noinline]] void* operator new[](size_t n, const std::nothrow_t&) noexcept {
  return gyre::testing::Remembered(n);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
