// Several products of panels in one parallel region: small ones keep all threads busy together, and threads meet once.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/products/packed.h"
#include "kernels/cpu/team.h"

namespace gyre::cpu {

// Panels [from, to) of the product of `rows` rows x with w: out[r][n], `ldo` floats from row to row. REQUIRES: w has
// panels. Different panels at once, on any threads.
void MultiplyPanels(const IsaOps& ops, const Quantized& x, size_t rows, const CpuWeight& w, size_t from, size_t to,
                    float* out, size_t ldo);

class JointProducts {
 public:
  void Clear() { products_.clear(); }
  // out[r][n] = w times row r of x; `stride` floats from row to row of out. REQUIRES: w has panels.
  void Add(const CpuWeight& w, const Quantized& x, size_t rows, float* out, size_t stride) {
    products_.push_back({&w, x, rows, out, stride});
  }
  // Each product has the bits that it has alone.
  void Run(const IsaOps& ops, const Team& team);

 private:
  struct Product {
    const CpuWeight* w;
    Quantized x;
    size_t rows;
    float* out;
    size_t stride;
  };
  std::vector<Product> products_;
  std::vector<size_t> panels_before_;  // of each product, and of all
};

}  // namespace gyre::cpu
