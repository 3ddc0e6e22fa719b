// A mixture of experts whose weights are packed panels: the products of all experts of a step together, so that a few
// rows for each of many experts keep all threads busy, and each expert's weights are read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/products/joint_products.h"
#include "kernels/cpu/products/packed.h"
#include "kernels/cpu/products/quantized_rows.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"

namespace gyre::cpu {

class ExpertProducts {
 public:
  ExpertProducts(const IsaOps& ops, const Team& team) : ops_(ops), team_(team) {}
  // Whether Run computes this mixture.
  static bool Supports(const IsaOps& ops, std::span<const Backend::RowRun> runs, const Backend::Mixture& mixture);
  // Backend::MixExperts of `rows` rows: the bits of the experts' separate products. REQUIRES: Supports.
  void Run(const float* x, size_t rows, const Backend::Mixture& mixture, float* out);

 private:
  // An expert that some rows go through. Its rows follow each other in the order of all experts' rows.
  struct Job {
    size_t expert, first, rows;
    Quantized in, inner;
  };
  void Group(size_t rows, const Backend::Mixture& mixture);

  const IsaOps& ops_;
  const Team& team_;
  std::vector<Job> jobs_;
  std::vector<size_t> job_of_, source_;  // of each row of all jobs: its job, and its row of x
  std::vector<size_t> place_of_;         // [row][used]: the row of all jobs
  JointProducts products_;
  QuantizedRows in_, inner_;
  Buffer gates_, made_;
};

}  // namespace gyre::cpu
