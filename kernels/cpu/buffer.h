// Memory of one type that starts on a cache line, or on a huge page if it is large. Never shrinks, never keeps what was
// in it when it grows.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace gyre {

template <typename T>
class Buffer {
 public:
  T* get() const { return data_.get(); }

  // Room for n elements, their content undefined. Throws std::bad_alloc.
  T* Reserve(size_t n) {
    if (n > size_) {
      constexpr size_t kHuge = size_t{1} << 21;
      const size_t align = n * sizeof(T) >= 2 * kHuge ? kHuge : 64;
      const size_t bytes = (n * sizeof(T) + align - 1) / align * align;
      data_.reset();
      data_.reset(static_cast<T*>(std::aligned_alloc(align, bytes)));
      if (data_ == nullptr) {
        size_ = 0;
        throw std::bad_alloc();
      }
      // Weights are streamed from end to end: with small pages a tenth of the time goes to address translation.
      if (align == kHuge) madvise(data_.get(), bytes, MADV_HUGEPAGE);
      size_ = n;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace gyre
