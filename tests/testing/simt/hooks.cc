// The functions that a compiler calls before each load and store with -fsanitize=thread. Kernels are compiled so; here
// the functions check what a GPU would do, in place of that sanitizer's runtime.
#include <cstddef>
#include <cstring>

#include "tests/testing/simt/block.h"
#include "tests/testing/simt/source_line.h"

#if defined(GYRE_SIMT_CHECKED)
namespace gyre::simt {
namespace {

inline void Seen(const void* p, size_t bytes, Access access, bool aligned, const void* from) {
  if (Block* block = Block::Running(); block != nullptr) block->Touch(p, bytes, access, aligned, CodeAt(from));
}
// Copies of structs: by words, as far as they go.
void SeenRange(const void* p, size_t bytes, Access access, const void* from) {
  for (size_t at = 0; at < bytes; at += 8)
    Seen(static_cast<const std::byte*>(p) + at, bytes - at < 8 ? bytes - at : 8, access, false, from);
}

}  // namespace
}  // namespace gyre::simt

#define GYRE_SEEN(name, bytes, access, aligned)                                                   \
  extern "C" void name(void* p);                                                                  \
  extern "C" void name(void* p) {                                                                 \
    gyre::simt::Seen(p, bytes, gyre::simt::Access::access, aligned, __builtin_return_address(0)); \
  }
#define GYRE_SEEN_SIZE(bytes)                                  \
  GYRE_SEEN(__tsan_read##bytes, bytes, kRead, true)            \
  GYRE_SEEN(__tsan_write##bytes, bytes, kWrite, true)          \
  GYRE_SEEN(__tsan_volatile_read##bytes, bytes, kRead, true)   \
  GYRE_SEEN(__tsan_volatile_write##bytes, bytes, kWrite, true) \
  GYRE_SEEN(__tsan_unaligned_read##bytes, bytes, kRead, false) \
  GYRE_SEEN(__tsan_unaligned_write##bytes, bytes, kWrite, false)
GYRE_SEEN_SIZE(1)
GYRE_SEEN_SIZE(2)
GYRE_SEEN_SIZE(4)
GYRE_SEEN_SIZE(8)
GYRE_SEEN_SIZE(16)

extern "C" {
void __tsan_read_range(void* p, size_t bytes);
void __tsan_write_range(void* p, size_t bytes);
void __tsan_init();
void __tsan_func_entry(void*);
void __tsan_func_exit();
void __tsan_vptr_update(void**, void*);
void __tsan_vptr_read(void**);
void* __tsan_memcpy(void* to, const void* from, size_t bytes);
void* __tsan_memmove(void* to, const void* from, size_t bytes);
void* __tsan_memset(void* to, int value, size_t bytes);

void __tsan_read_range(void* p, size_t bytes) {
  gyre::simt::SeenRange(p, bytes, gyre::simt::Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t bytes) {
  gyre::simt::SeenRange(p, bytes, gyre::simt::Access::kWrite, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  gyre::simt::SeenRange(from, bytes, gyre::simt::Access::kRead, __builtin_return_address(0));
  gyre::simt::SeenRange(to, bytes, gyre::simt::Access::kWrite, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  gyre::simt::SeenRange(from, bytes, gyre::simt::Access::kRead, __builtin_return_address(0));
  gyre::simt::SeenRange(to, bytes, gyre::simt::Access::kWrite, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  gyre::simt::SeenRange(to, bytes, gyre::simt::Access::kWrite, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}
}
#endif
