// Divides the ops of layers with recurrent state among threads: sequences, and channels or heads.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/products/packed.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"

namespace gyre::cpu {

// One thread drives it; it spreads the work over the team.
class Recurrence {
 public:
  Recurrence(const IsaOps& ops, const Team& team) : ops_(ops), team_(team) {}
  // Backend::ShortConv and Backend::ScanState.
  void ShortConv(const float* x, size_t stride, std::span<const StateRun> runs, const ShortConvParams& params,
                 float* out) const;
  void ScanState(const StateScanRows& rows, std::span<const StateRun> runs, const StateScanParams& params, float* out);

 private:
  void ScanHead(const StateScanRows& rows, const StateRun& run, size_t head, const StateScanParams& params, float* keys,
                float* out) const;

  const IsaOps& ops_;
  const Team& team_;
  Buffer keys_;  // normalized queries and keys, a tile of rows for each thread
};

}  // namespace gyre::cpu
