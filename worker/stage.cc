#include "worker/stage.h"

#include <cstring>
#include <utility>

namespace gyre {

Stage::Stage(StageParts parts, const StageOptions& options, Backend& backend)
    : parts_(std::move(parts)),
      limits_(MakeStepLimits(parts_, options.model)),
      forward_(parts_, backend, options.exact),
      answers_(parts_.model->spec(), forward_, backend) {}

Status Stage::Run(const StepBatch& batch, std::span<const std::byte> rows, StepAnswer* answer) {
  GYRE_RETURN_IF_ERROR(CheckStep(limits_, batch, rows));
  float* x = forward_.Begin(batch);
  if (parts_.first) {
    ids_.resize(rows.size() / sizeof(TokenId));
    std::memcpy(ids_.data(), rows.data(), rows.size());
    forward_.Embed(ids_);
  } else {
    std::memcpy(x, rows.data(), rows.size());
  }
  if (!parts_.last) {
    forward_.RunLayers();
    return absl::OkStatus();
  }
  forward_.RunLayers(answers_.Wanted(batch));
  answers_.Make(batch, answer);
  return absl::OkStatus();
}

}  // namespace gyre
