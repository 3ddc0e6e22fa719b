// Vectors in the memory of the emulated GPU, for tests of kernels.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/testing/simt/simt.h"

namespace gyre::testing {

template <typename T>
class GpuVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // n elements that nobody has written.
  explicit GpuVector(size_t n) : data_(static_cast<T*>(simt::Allocate(n * sizeof(T)))), size_(n) {}
  explicit GpuVector(std::span<const T> host) : GpuVector(host.size()) {
    simt::CopyIn(host.data(), data_, host.size_bytes());
  }
  explicit GpuVector(const std::vector<T>& host) : GpuVector(std::span<const T>(host)) {}
  GpuVector(GpuVector&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  GpuVector& operator=(GpuVector&&) = delete;
  ~GpuVector() {
    if (data_ != nullptr) simt::Free(data_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  // The elements. Throws simt::Fault if nobody wrote some of them.
  std::vector<T> host() const {
    std::vector<T> out(size_);
    simt::CopyOut(data_, out.data(), size_ * sizeof(T));
    return out;
  }

 private:
  T* data_;
  size_t size_;
};

}  // namespace gyre::testing
