// What a step names is checked before anything of it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/step.h"
#include "worker/layer.h"

namespace gyre {

// What a stage can take.
struct StepLimits {
  uint32_t model = 0;
  bool first = false;
  bool last = false;
  size_t dim = 0;
  size_t vocab = 0;
  uint32_t block_size = 0;
  uint32_t num_blocks = 0;
  // [KV group]: the widest window of the stage's layers, 0 where one sees everything; kNoLayer where none is here.
  std::vector<int> windows;
  static constexpr int kNoLayer = -1;

  size_t input_width() const { return first ? sizeof(TokenId) : dim * sizeof(float); }
};

// REQUIRES: at least one layer.
StepLimits MakeStepLimits(const StageParts& parts, uint32_t model);

// kInvalidArgument, kUnimplemented (an adapter), kResourceExhausted (a result that no frame holds): one sentence.
Status CheckStep(const StepLimits& limits, const StepBatch& batch, std::span<const std::byte> rows);

}  // namespace gyre
