// The lengths of rows on a device.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"

namespace gyre {

// Not thread-safe.
class RowLength {
 public:
  explicit RowLength(Backend& backend) : backend_(backend) {}
  // unit [rows][n] = the rows of x divided by their root mean squares. May be in place.
  void Divide(const float* x, size_t rows, size_t n, float* unit);
  // The sum of each row of x [rows][n], on the device until the next call.
  const float* SumOf(const float* x, size_t rows, size_t n);
  // The root mean square of each row of x [rows][n], on the device until the next call. `unit` [rows][n], not x,
  // becomes the rows divided by it.
  const float* Of(const float* x, size_t rows, size_t n, float* unit);

 private:
  // A row's product with ones is its sum.
  struct Ones {
    std::vector<float> host;
    std::shared_ptr<const PackedWeight> packed;
  };
  const PackedWeight& OnesOf(size_t n);

  Backend& backend_;
  std::map<size_t, Ones> ones_;
  DeviceBuffer<float> products_, lengths_;
};

}  // namespace gyre
