// All layers of a model in one stage, run without a worker.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/step_codec.h"
#include "tests/testing/test_device.h"
#include "worker/stage.h"

namespace gyre::testing {

inline constexpr uint32_t kPages = 24, kPageSize = 16, kSlotCount = 4, kVocab = 96;

// All layers of a model in one stage, with two sequences' tables.
class OneStage {
 public:
  // `head`: with the output head; a step that needs logits without one crashes.
  OneStage(std::shared_ptr<const Model> model, Isa isa, bool head = true, KvType kv = KvType::kF16)
      : OneStage(std::move(model), TestDevice(isa, 2), head, kv) {}
  // `mtp`: with the model's layer for drafts. `exact`: f32 activations.
  OneStage(std::shared_ptr<const Model> model, std::shared_ptr<Device> device, bool head = true,
           KvType kv = KvType::kF16, bool mtp = false, bool exact = false)
      : device_(std::move(device)), backend_(device_->NewBackend()) {
    StageParts parts{
        .model = model, .range = {0, static_cast<int>(model->spec().layers.size())}, .first = true, .last = true};
    for (int i = 0; i < parts.range.end; ++i) {
      auto layer = *LoadLayer(
          *model, i, *backend_, [](size_t) {}, exact);
      const PoolSizes sizes(
          {.block_size = kPageSize, .memory = {.units = {kPages, kSlotCount, kPages}}, .kv_type = kv});
      layer->pages = *PagePool::For(layer->spec, model->spec().dim, sizes, *device_);
      parts.layers.push_back(std::move(layer));
    }
    parts.ends = *LoadEnds(*model, true, true, *backend_, [](size_t) {});
    if (!head) parts.ends.output = nullptr;
    if (mtp) {
      const std::shared_ptr<MtpHead> drafts = *LoadMtp(*model, *backend_, [](size_t) {});
      const std::shared_ptr<Layer> layer = drafts->layer->Weights();
      const PoolSizes sizes({.block_size = kPageSize, .memory = {.units = {kPages, 0, 0}}, .kv_type = kv});
      layer->pages = *PagePool::For(layer->spec, model->spec().dim, sizes, *device_);
      drafts->layer = layer;
      parts.ends.mtp = drafts;
    }
    groups_ = static_cast<size_t>(model->spec().kv_groups);
    stage_ = std::make_unique<Stage>(std::move(parts), *backend_, exact, WireType::kF32);
  }

  // Rows [first, first + ids.size()) of a sequence.
  struct Part {
    uint64_t seq;
    uint32_t first;
    RowClass row_class;
    std::vector<TokenId> ids;
    std::vector<RowRequest> requests;
    SlotTable slots = {};  // with recurrent state; its own slot is the sequence's number where none is said
    uint32_t incarnation = 0;
    std::optional<MtpRows> mtp = {};
  };
  // [requested row][vocab]
  std::vector<std::vector<float>> Run(const std::vector<Part>& step) {
    std::vector<std::vector<float>> logits;
    for (RowAnswer& row : Answers(step)) logits.push_back(std::move(row.values));
    return logits;
  }
  std::vector<RowAnswer> Answers(const std::vector<Part>& step) {
    StepAnswer answer;
    const Status status = Try(step, &answer);
    EXPECT_TRUE(status.ok()) << status;
    return std::move(answer.rows);
  }
  Status Try(const std::vector<Part>& step, StepAnswer* answer) {
    StepBatch batch;
    std::vector<TokenId> ids;
    for (const Part& p : step) {
      std::vector<BlockId> table;
      for (uint32_t b = 0; b < kPages / 2; ++b) table.push_back(static_cast<BlockId>(2 * b + p.seq));
      batch.seqs.push_back({.seq = SeqId{p.seq},
                            .incarnation = p.incarnation,
                            .row_class = p.row_class,
                            .first_position = p.first,
                            .row_count = static_cast<uint32_t>(p.ids.size()),
                            .blocks = {table},
                            .requests = p.requests,
                            .mtp = p.mtp});
      SlotTable slots = p.slots;
      if (slots.slot == kNoBlock) slots.slot = static_cast<BlockId>(p.seq);
      auto& tables = batch.seqs.back().blocks;
      tables.resize(groups_);
      const ModelSpec& spec = stage_->parts().model->spec();
      if (spec.has_slots) tables[kSlotGroup] = slots.Entries();
      // For layers with a window a stage needs only the blocks that the first row reads, and has other pages for them.
      if (spec.window > 0) {
        const uint32_t read =
            p.first + 1 > static_cast<uint32_t>(spec.window) ? p.first + 1 - static_cast<uint32_t>(spec.window) : 0;
        WindowTable window{.first = read / kPageSize};
        for (uint32_t b = window.first; b < kPages / 2; ++b) window.blocks.push_back(kPages - 1 - table[b]);
        tables[kWindowGroup] = window.Entries();
      }
      ids.insert(ids.end(), p.ids.begin(), p.ids.end());
    }
    GYRE_RETURN_IF_ERROR(stage_->Run(batch, std::as_bytes(std::span(ids)), ++step_, answer));
    Encoder encoded;
    EncodeStepAnswer(*answer, &encoded);
    const ModelSpec& spec = stage_->parts().model->spec();
    EXPECT_LE(encoded.size(), MaxAnswerBytes(batch, static_cast<size_t>(spec.vocab), static_cast<size_t>(spec.dim)));
    return absl::OkStatus();
  }

  Stage& stage() { return *stage_; }
  // The state in a slot, for a layer that has slots.
  std::vector<float> State(size_t layer_number, BlockId slot, size_t floats) {
    const auto state = backend_->Download<float>(layer(layer_number).pages->State(slot), floats);
    backend_->Finish();
    return {state.begin(), state.end()};
  }
  const Layer& layer(size_t i) const { return *stage_->parts().layers[i]; }
  Backend& queue() { return *backend_; }

 private:
  std::shared_ptr<Device> device_;
  std::unique_ptr<Backend> backend_;
  size_t groups_ = 1;
  std::unique_ptr<Stage> stage_;
  uint64_t step_ = 0;
};

}  // namespace gyre::testing
