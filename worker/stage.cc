#include "worker/stage.h"

#include <algorithm>
#include <cstring>

#include "worker/settle.h"
#include "worker/wire_rows.h"

namespace gyre {

Stage::Stage(StageParts parts, Backend& backend, bool exact, WireType wire)
    : parts_(std::move(parts)),
      backend_(backend),
      forward_(backend, parts_.model->spec().dim, exact),
      wire_(wire),
      dim_(static_cast<size_t>(parts_.model->spec().dim)),
      row_elems_(static_cast<size_t>(parts_.model->spec().RowElems())),
      vocab_(static_cast<size_t>(parts_.model->spec().vocab)),
      per_layer_width_(static_cast<size_t>(parts_.model->spec().per_layer_width)) {
  if (parts_.last && parts_.ends.mtp != nullptr)
    drafter_.emplace(parts_.model->spec(), parts_.ends, backend_, forward_, selected_, logits_);
  if (per_layer_width_ == 0) return;
  // Both were looked up when the model was opened.
  embedding_ = *parts_.model->Embedding();
  per_layer_tokens_ = *parts_.model->PerLayerTokens();
}

size_t Stage::input_width() const {
  if (parts_.first) return sizeof(TokenId);
  return WireRowBytes(wire_, row_elems_) + (per_layer_width_ > 0 ? sizeof(TokenId) : 0);
}

Status Stage::CheckSequence(const SeqRows& s) const {
  const auto seq = static_cast<uint64_t>(s.seq);
  if (s.model != parts_.model_id) {
    return InvalidArgument("sequence {}: model {}, this stage runs {}", seq, s.model, parts_.model_id);
  }
  if (const size_t adapters = parts_.model->adapters().size(); s.adapter > adapters)
    return InvalidArgument("sequence {}: adapter {}, the model has {}", seq, s.adapter, adapters);
  const auto groups = static_cast<size_t>(parts_.model->spec().kv_groups);
  if (s.blocks.size() != groups) {
    return InvalidArgument("sequence {}: {} block tables, expected {}", seq, s.blocks.size(), groups);
  }
  const size_t end = size_t{s.first_position} + s.row_count;
  const auto most = static_cast<size_t>(parts_.model->spec().most_context);
  if (most > 0 && end > most)
    return InvalidArgument("sequence {}: {} positions, this model's texts have at most {}", seq, end, most);
  if (parts_.model->spec().encoder && s.first_position != 0)
    return InvalidArgument("sequence {}: rows from position {} on, an encoder takes whole texts", seq,
                           s.first_position);
  GYRE_RETURN_IF_ERROR(CheckPages(s));
  if (drafter_) GYRE_RETURN_IF_ERROR(drafter_->Check(s));  // a stage without one ignores all of it
  return CheckRequests(s);
}

// A pool of this group on this stage; null: it has none.
const PagePool* Stage::PoolOf(int group) const {
  for (const auto& layer : parts_.layers) {
    if (layer->pages != nullptr && layer->spec.kv_group == group) return layer->pages.get();
  }
  return nullptr;
}

Status Stage::CheckPages(const SeqRows& s) const {
  const auto seq = static_cast<uint64_t>(s.seq);
  const size_t end = size_t{s.first_position} + s.row_count;
  for (int group = 0; group < kKvGroups; ++group) {
    const PagePool* pool = KindOf(group).paged ? PoolOf(group) : nullptr;
    if (pool == nullptr) continue;
    std::span<const BlockId> table = s.blocks[static_cast<size_t>(group)];
    const auto block_size = static_cast<size_t>(pool->view().block_size);
    size_t first = 0;
    if (KindOf(group).moves_on) {
      if (table.empty()) return InvalidArgument("sequence {} has no {}s", seq, KindOf(group).unit);
      first = table.front();
      table = table.subspan(1);
      const auto window = static_cast<size_t>(parts_.model->spec().window);
      const size_t read = s.first_position + 1 > window ? s.first_position + 1 - window : 0;
      if (first > read / block_size) {
        return InvalidArgument("sequence {}: {}s from number {} on, position {} is read", seq, KindOf(group).unit,
                               first, read);
      }
    }
    const size_t needed = (end + block_size - 1) / block_size - first;
    if (table.size() < needed) {
      return InvalidArgument("sequence {}: {} blocks for {} positions, expected {}", seq, table.size(), end, needed);
    }
    for (const BlockId block : table.first(needed)) {
      if (block < pool->num_blocks()) continue;
      return InvalidArgument("sequence {}: block {}, this stage has 0-{}", seq, block, pool->num_blocks() - 1);
    }
  }
  return absl::OkStatus();
}

Status Stage::CheckRequests(const SeqRows& s) const {
  const auto seq = static_cast<uint64_t>(s.seq);
  for (const RowRequest& r : s.requests) {
    if (parts_.model->spec().encoder && r.mode != RowMode::kHidden)
      return InvalidArgument("sequence {}: an answer of an encoder that is no hidden state", seq);
    if (!r.biased.empty() && static_cast<size_t>(r.biased.back()) >= vocab_) {
      return InvalidArgument("sequence {}: biased id {}, the vocabulary has 0-{}", seq, r.biased.back(), vocab_ - 1);
    }
    if (!r.mask.empty() && r.mask.size() != (vocab_ + 63) / 64) {
      return InvalidArgument("sequence {}: a mask of {} words, expected {}", seq, r.mask.size(), (vocab_ + 63) / 64);
    }
    if (parts_.last && r.mask_number && masks_.Find(*r.mask_number).empty()) {
      return InvalidArgument("sequence {}: there is no mask {}", seq, *r.mask_number);
    }
  }
  return absl::OkStatus();
}

Status Stage::Check(const StepBatch& batch, std::span<const std::byte> rows) const {
  for (const SeqRows& s : batch.seqs) GYRE_RETURN_IF_ERROR(CheckSequence(s));
  GYRE_RETURN_IF_ERROR(CheckSlots(batch));
  if (rows.size() != batch.TotalRows() * input_width()) {
    return InvalidArgument("{} bytes for {} rows of {}", rows.size(), batch.TotalRows(), input_width());
  }
  if (!parts_.first && per_layer_width_ == 0) return absl::OkStatus();
  for (size_t i = parts_.first ? 0 : batch.TotalRows() * WireRowBytes(wire_, row_elems_); i < rows.size();
       i += sizeof(TokenId)) {
    TokenId id = 0;
    std::memcpy(&id, rows.data() + i, sizeof id);
    if (id < 0 || static_cast<size_t>(id) >= vocab_) {
      return InvalidArgument("token id {}, the vocabulary has 0-{}", id, vocab_ - 1);
    }
  }
  return absl::OkStatus();
}

const PagePool* Stage::KvOf(const Layer& layer) const {
  const AttentionSpec* a = layer.spec.attention();
  if (a == nullptr || a->kv_layer < 0) return layer.pages.get();
  return parts_.layers[static_cast<size_t>(a->kv_layer - parts_.range.begin)]->pages.get();
}

void Stage::StampPages(const StepBatch& batch, uint64_t step) {
  for (const auto& layer : parts_.layers) {
    if (layer->pages == nullptr || layer->pages->has_slots()) continue;
    const auto block = static_cast<uint32_t>(layer->pages->view().block_size);
    for (const SeqRows& s : batch.seqs) {
      const auto& table = s.blocks[static_cast<size_t>(layer->spec.kv_group)];
      const bool moves_on = KindOf(layer->spec.kv_group).moves_on;
      const uint32_t skipped = moves_on ? table[0] : 0;
      const BlockId* pages = table.data() + (moves_on ? 1 : 0);
      const uint32_t end = (s.first_position + s.row_count + block - 1) / block;
      for (uint32_t b = s.first_position / block; b < end; ++b) {
        layer->pages->Stamp(pages[b - skipped], step);
        if ((b + 1) * block <= s.first_position + s.row_count) layer->pages->StampFull(pages[b - skipped], step);
      }
    }
  }
}

Status Stage::Run(const StepBatch& batch, std::span<const std::byte> rows, uint64_t step, StepAnswer* answer,
                  LayerClock* clock) {
  GYRE_RETURN_IF_ERROR(Check(batch, rows));
  StampPages(batch, step);
  {
    const SettleOnError settle(backend_);
    Compute(batch, rows, step, answer, clock);
  }
  EndStates(batch, step);
  return absl::OkStatus();
}

void Stage::Compute(const StepBatch& batch, std::span<const std::byte> rows, uint64_t step, StepAnswer* answer,
                    LayerClock* clock) {
  backend_.Recycle();
  BeginStates(batch, step);
  ComputeRows(batch, rows, answer, clock);
}

void Stage::Reserve(uint32_t rows, uint32_t end) {
  // One sequence whose rows are as many, and as far behind, as they may be. What its tables say is never read.
  SeqRows s{.seq = SeqId{0}, .model = parts_.model_id, .row_class = RowClass::kPrompt, .row_count = rows};
  s.first_position = end > rows ? end - rows : 0;
  const std::vector<BlockId> table(size_t{end} + rows + 1);
  s.blocks.assign(static_cast<size_t>(parts_.model->spec().kv_groups), table);
  if (parts_.model->spec().has_slots) s.blocks[kSlotGroup] = SlotTable{.slot = 0}.Entries();
  constexpr uint32_t kAnswers = 64;  // of which the logits lie beside each other
  s.requests = {{.first = 0, .count = std::min(rows, kAnswers), .mode = RowMode::kArgmax}};
  if (drafter_) s.mtp = {.next = std::vector<TokenId>(rows + 1), .first = 0, .most = 1};
  StepBatch batch;
  batch.seqs.push_back(std::move(s));
  const std::vector<std::byte> input(rows * input_width());
  StepAnswer answer;
  // Each adapter has its own ranks and matrices.
  for (uint32_t adapter = 0; adapter <= parts_.model->adapters().size(); ++adapter) {
    batch.seqs[0].adapter = adapter;
    backend_.Rehearse([&] {
      if (parts_.last) kept_.EnsureCapacity(backend_.device(), kKeptRows * dim_);
      ComputeRows(batch, input, &answer, nullptr);
    });
  }
}

void Stage::ComputeRows(const StepBatch& batch, std::span<const std::byte> rows, StepAnswer* answer,
                        LayerClock* clock) {
  const size_t count = batch.TotalRows();
  float* x = x_.EnsureCapacity(backend_.device(), count * row_elems_);
  const ModelSpec& spec = parts_.model->spec();
  if (parts_.first || per_layer_width_ > 0) {
    ids_.resize(count);
    std::memcpy(ids_.data(), rows.data() + (rows.size() - count * sizeof(TokenId)), count * sizeof(TokenId));
  }
  if (parts_.first) {
    float* embedded = spec.RowElems() == spec.dim ? x : embedded_rows_.EnsureCapacity(backend_.device(), count * dim_);
    forward_.Embed(backend_.Upload(std::span<const TokenId>(ids_)), *parts_.ends.embedding, spec.embedding_scale,
                   embedded);
    if (spec.streams > 1) forward_.BeginStreams(embedded, count, parts_.ends, x);
    if (parts_.ends.positions != nullptr) {
      positions_.clear();
      for (const SeqRows& s : batch.seqs) {  // only rows of a rehearsal can be further
        for (uint32_t i = 0; i < s.row_count; ++i)
          positions_.push_back(
              std::min(static_cast<TokenId>(s.first_position + i), static_cast<TokenId>(spec.positions - 1)));
      }
      forward_.AddPositions(backend_.Upload(std::span<const TokenId>(positions_)), *parts_.ends.positions, x);
    }
    if (spec.embedding_norm) forward_.NormEmbeddings(parts_.ends, spec, count, embedded);
    if (spec.carries_values) forward_.BeginCarrying(embedded, count, x);
  } else {
    const auto in = backend_.Upload(rows.first(count * WireRowBytes(wire_, row_elems_)));
    backend_.DecodeRows(RowType(wire_), in.data(), count, row_elems_, x);
  }
  if (per_layer_width_ > 0) forward_.SetTokens(ids_, embedding_, spec.embedding_scale, per_layer_tokens_);
  places_.Fill(batch, backend_);
  const bool makes_drafts = drafter_ && MtpDrafter::Drafts(batch);
  for (const auto& layer : parts_.layers) {
    const bool ends = parts_.last && layer == parts_.layers.back();
    if (ends) logit_rows_.FillLogitRows(batch, places_, backend_);
    // In a step of generated rows every row is a logit row, and one set of places serves.
    const bool some_rows = ends && !makes_drafts && logit_rows_.count() < count;
    const TimedLayer timed(clock, count);
    forward_.RunLayer(*layer, KvOf(*layer), places_, some_rows ? logit_rows_ : places_, x);
  }
  CopyStates(batch);
  if (parts_.last) {
    // The rest of the wait counts as a layer, as a device may still be in the first one.
    const TimedLayer timed(clock, count);
    if (makes_drafts) drafter_->KeepHidden(x, count, batch.seqs.size(), logit_rows_);
    Answers(batch, answer);
    if (makes_drafts) drafter_->Draft(batch, answer);
    return backend_.Finish();
  }
  saturated_ = 0;
  if (wire_ == WireType::kF32) {
    sent_ = backend_.Download(reinterpret_cast<const std::byte*>(x), count * row_elems_ * sizeof(float));
  } else {
    uint64_t* saturated = saturated_count_.EnsureCapacity(backend_.device(), 1);
    std::byte* out = encoded_.EnsureCapacity(backend_.device(), count * WireRowBytes(wire_, row_elems_));
    backend_.Zero(saturated, sizeof *saturated);
    backend_.EncodeRows(RowType(wire_), x, count, row_elems_, out, saturated);
    sent_ = backend_.Download(out, count * WireRowBytes(wire_, row_elems_));
    backend_.CopyOut(saturated, &saturated_, sizeof saturated_);
  }
  const TimedLayer timed(clock, count);
  backend_.Finish();
}

}  // namespace gyre
