// Rows of activations, quantized as the panels of weights need them: one matrix of rows, or several in one allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/products/packed.h"

namespace gyre::cpu {

class QuantizedRows {
 public:
  void Clear() {
    parts_.clear();
    slots_ = 0;
    any_wide_ = false;
  }
  // The first matrix that is laid out as `rows` rows for products with w need it; size(), if there is none.
  size_t Find(const IsaOps& ops, const CpuWeight& w, size_t rows) const;
  size_t size() const { return parts_.size(); }
  // `rows` rows for products with w; they get the next number from 0. Before Allocate.
  void Add(const IsaOps& ops, const CpuWeight& w, size_t rows);
  // Throws std::bad_alloc.
  void Allocate();
  // The rows as they are quantized for the matrix with this number.
  Quantized View(size_t number) const;
  // Quantizes row `row` of a matrix from x [w.k]. Different rows at once, on any threads.
  void Quantize(const IsaOps& ops, size_t number, size_t row, const float* x);

 private:
  struct Part {
    size_t first, slots;  // blocks, among all
    size_t used, blocks;  // of a row: those with values, and all
    size_t group;
    bool wide, halves;
    int32_t times;
    bool operator==(const Part&) const = default;
  };
  static Part PartOf(const IsaOps& ops, const CpuWeight& w, size_t rows);
  // The alignment keeps a block from crossing cache lines.
  template <typename T>
  struct alignas(kBlock * sizeof(T)) Block {
    T q[kBlock];
  };
  std::vector<Part> parts_;
  size_t slots_ = 0;
  bool any_wide_ = false;
  std::vector<Block<int8_t>> q_;
  std::vector<Block<int16_t>> wide_;
  std::vector<float> scale_, sum_;
  std::vector<int32_t> offset_;  // of each matrix first the first parts, then the second
};

}  // namespace gyre::cpu
