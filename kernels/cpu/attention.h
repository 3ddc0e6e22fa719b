// Attention over paged keys and values.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/team.h"

namespace gyre {

// Keeps its scratch memory between calls. One thread at a time.
class Attender {
 public:
  Attender(const KernelTable& kernels, const Team& team) : kernels_(kernels), team_(team) {
    scratch_.resize(static_cast<size_t>(team.threads()));
  }

  // Backend::Attention.
  void Run(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params, float* out);

 private:
  struct Call;

  const KernelTable& kernels_;
  const Team& team_;
  std::vector<size_t> batches_;  // first row of each batch, then the end
  std::vector<Buffer<float>> scratch_;
};

}  // namespace gyre
