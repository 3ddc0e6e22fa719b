// A stage: a layer range with its weights and pages, run step by step. No I/O, no threads of its own.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/plan.h"
#include "base/status.h"
#include "base/step.h"
#include "base/wire_type.h"
#include "worker/forward.h"
#include "worker/layer.h"
#include "worker/layer_clock.h"
#include "worker/mask_table.h"
#include "worker/mtp_drafter.h"
#include "worker/selected_logits.h"

namespace gyre {

// The parts of a stage. Layers may be shared with another plan's stage.
struct StageParts {
  std::shared_ptr<const Model> model;
  uint32_t model_id = 0;
  LayerRange range;
  bool first = false;
  bool last = false;
  std::vector<std::shared_ptr<Layer>> layers;  // of range, in order
  Ends ends;
};

// Not thread-safe: the worker's stage thread runs it.
class Stage {
 public:
  // `backend`: its queue. `wire`: the type of the activations that come in and go out.
  Stage(StageParts parts, Backend& backend, bool exact, WireType wire);

  // Bytes a row of input: an id at the first stage, else dim values of `wire`, and an id if the model has per-layer
  // embeddings. The ids lie behind all rows' values.
  size_t input_width() const;
  // Computes a step, and waits for it. `rows`: TotalRows() * input_width() bytes, in the order of the batch. Every
  // stage but the last leaves rows(), the last fills `answer`. Everything in the batch is checked before it is used:
  // kInvalidArgument with the sentence, and nothing was computed. `step`: stamps the pages that are written
  // (PagePool::Stamp). `clock`: is told of each layer; may be null. Throws what ops throw (docs/device.md).
  Status Run(const StepBatch& batch, std::span<const std::byte> rows, uint64_t step, StepAnswer* answer,
             LayerClock* clock = nullptr);
  // Takes the device's memory for steps of up to `rows` rows and for positions below `end`, so that it does not run
  // out in the middle of a text. REQUIRES: no step was run. Throws OutOfDeviceMemory.
  void Reserve(uint32_t rows, uint32_t end);
  // The step's hidden states as they travel, in the type `wire`, until the next step; and how many of their values were
  // saturated to the largest that the type holds.
  std::span<const std::byte> rows() const { return sent_; }
  uint64_t saturated() const { return saturated_; }
  // The ids of the rows, if the next stage needs them beside rows().
  std::span<const TokenId> tokens() const {
    return per_layer_width_ > 0 ? std::span(ids_) : std::span<const TokenId>();
  }
  // REQUIRES: the last stage. Later steps name these masks by their numbers. Throws what ops throw.
  void SetMasks(const std::vector<NumberedMask>& masks);
  // REQUIRES: the last stage. Empty logits where the row's hidden state is no longer kept.
  LogitsAnswer Answer(const FullLogitsRequest& question);

  const StageParts& parts() const { return parts_; }

 private:
  static constexpr size_t kKeptRows = 256;
  // A row of the step whose answer needs logits.
  struct HeadedRow {
    const RowRequest* request;
    size_t answer;  // its index among the step's answers
    uint32_t model;
  };

  Status Check(const StepBatch& batch, std::span<const std::byte> rows) const;
  Status CheckSequence(const SeqRows& s) const;
  Status CheckPages(const SeqRows& s) const;
  const PagePool* PoolOf(int group) const;
  Status CheckRequests(const SeqRows& s) const;
  // The pages that a layer's attention reads.
  const PagePool* KvOf(const Layer& layer) const;
  void StampPages(const StepBatch& batch, uint64_t step);
  // Recurrent state (stage_state.cc; docs/memory.md). The rows must go on where their sequences' slots are; before they
  // are applied each slot gets the state that they begin with, after them snapshots are made.
  Status CheckSlots(const StepBatch& batch) const;
  Status CheckState(const SeqRows& s, const Layer& layer) const;
  void BeginStates(const StepBatch& batch, uint64_t step);
  void CopyStates(const StepBatch& batch);
  void EndStates(const StepBatch& batch, uint64_t step);  // when they are computed
  void Compute(const StepBatch& batch, std::span<const std::byte> rows, uint64_t step, StepAnswer* answer,
               LayerClock* clock);
  // The part of Compute between the beginning and the end of the states' slots.
  void ComputeRows(const StepBatch& batch, std::span<const std::byte> rows, StepAnswer* answer, LayerClock* clock);
  // The last stage's answers (stage_answers.cc).
  void Answers(const StepBatch& batch, StepAnswer* answer);
  void AnswerHidden(StepAnswer* answer);
  void AnswerSlice(std::span<const HeadedRow> rows, const float* hidden, StepAnswer* answer);
  void Keep(const RowAnswer& row, uint32_t model, const float* hidden);

  const StageParts parts_;
  Backend& backend_;
  Forward forward_;
  const WireType wire_;
  const size_t dim_, row_elems_, vocab_, per_layer_width_;
  WeightView embedding_, per_layer_tokens_;  // of a model with per-layer embeddings, as they lie in the file
  std::vector<TokenId> ids_;                 // of the step's rows, where they came
  std::vector<TokenId> positions_;           // of the same rows, where the model has a table of positions
  RowPlaces places_, logit_rows_;
  DeviceBuffer<float> x_, embedded_rows_, normed_, logits_, hidden_;
  DeviceBuffer<std::byte> encoded_;
  DeviceBuffer<uint64_t> saturated_count_;
  std::span<const std::byte> sent_;
  uint64_t saturated_ = 0;
  std::vector<HeadedRow> headed_;
  std::vector<uint32_t> headed_numbers_, hidden_numbers_;  // among the logit rows
  std::vector<size_t> hidden_answers_;
  SelectedLogits selected_;
  MaskTable masks_;
  // Normalized hidden states [kKeptRows][dim] of the last sampled rows, and whose they are.
  DeviceBuffer<float> kept_;
  std::vector<FullLogitsRequest> kept_keys_;
  size_t next_kept_ = 0;
  std::optional<MtpDrafter> drafter_;  // of a last stage with a layer for drafts
};

}  // namespace gyre
