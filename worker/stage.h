// A stage: a layer range with its weights and pages, run step by step. No I/O, no threads of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/step.h"
#include "worker/answers.h"
#include "worker/forward.h"
#include "worker/layer.h"
#include "worker/step_check.h"

namespace gyre {

struct StageOptions {
  uint32_t model = 0;  // the number that steps name
  bool exact = false;  // quantized weights times f32 activations
};

// Not thread-safe: one thread runs it. The backend outlives it.
class Stage {
 public:
  Stage(StageParts parts, const StageOptions& options, Backend& backend);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Bytes a row of input takes: an id at the first stage, else dim floats.
  size_t input_width() const { return limits_.input_width(); }
  // Computes a step. `rows`: TotalRows() * input_width() bytes, in the order of the batch. The last stage fills
  // `answer`, every other leaves its result in hidden(). All that the batch names is checked before it is used; after
  // an error nothing was computed.
  Status Run(const StepBatch& batch, std::span<const std::byte> rows, StepAnswer* answer);
  // [rows][dim] of the last step, until the next.
  std::span<const float> hidden() const { return forward_.x(); }
  // REQUIRES: the last stage. Empty logits where the row's hidden state is no longer kept.
  LogitsAnswer Answer(const LogitsQuestion& question) { return answers_.Answer(question); }

  const StageParts& parts() const { return parts_; }

 private:
  const StageParts parts_;
  const StepLimits limits_;
  Forward forward_;
  Answers answers_;
  std::vector<TokenId> ids_;
};

}  // namespace gyre
