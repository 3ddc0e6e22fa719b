#include "worker/stage.h"

#include <algorithm>
#include <cstring>

#include "worker/wire_rows.h"

namespace gyre {

Stage::Stage(StageParts parts, Backend& backend, bool exact, WireType wire)
    : parts_(std::move(parts)),
      backend_(backend),
      forward_(backend, parts_.model->spec().dim, exact),
      wire_(wire),
      dim_(static_cast<size_t>(parts_.model->spec().dim)),
      vocab_(static_cast<size_t>(parts_.model->spec().vocab)),
      side_width_(static_cast<size_t>(parts_.model->spec().side_width)) {
  if (side_width_ == 0) return;
  // Both were looked up when the model was opened.
  embedding_ = *parts_.model->Embedding();
  side_tokens_ = *parts_.model->SideTokens();
}

size_t Stage::input_width() const {
  if (parts_.first) return sizeof(TokenId);
  return WireRowBytes(wire_, dim_) + (side_width_ > 0 ? sizeof(TokenId) : 0);
}

Status Stage::CheckSequence(const SeqRows& s) const {
  const auto seq = static_cast<uint64_t>(s.seq);
  if (s.model != parts_.model_id) {
    return InvalidArgument("sequence {}: model {}, this stage runs {}", seq, s.model, parts_.model_id);
  }
  if (s.adapter != 0) return InvalidArgument("sequence {}: adapter {}, none is loaded", seq, s.adapter);
  const auto groups = static_cast<size_t>(parts_.model->spec().kv_groups);
  if (s.blocks.size() != groups) {
    return InvalidArgument("sequence {}: {} block tables, expected {}", seq, s.blocks.size(), groups);
  }
  GYRE_RETURN_IF_ERROR(CheckPages(s));
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
  for (const int group : {kPageGroup, kWindowGroup}) {
    const PagePool* pool = PoolOf(group);
    if (pool == nullptr) continue;
    std::span<const BlockId> table = s.blocks[static_cast<size_t>(group)];
    const auto block_size = static_cast<size_t>(pool->view().block_size);
    size_t first = 0;
    if (group == kWindowGroup) {
      if (table.empty()) return InvalidArgument("sequence {} has no windowed blocks", seq);
      first = table.front();
      table = table.subspan(1);
      const auto window = static_cast<size_t>(parts_.model->spec().window);
      const size_t read = s.first_position + 1 > window ? s.first_position + 1 - window : 0;
      if (first > read / block_size) {
        return InvalidArgument("sequence {}: windowed blocks from number {} on, position {} is read", seq, first, read);
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
    if (!r.touched.empty() && static_cast<size_t>(r.touched.back()) >= vocab_) {
      return InvalidArgument("sequence {}: touched id {}, the vocabulary has 0-{}", seq, r.touched.back(), vocab_ - 1);
    }
    if (!r.mask.empty() && r.mask.size() != (vocab_ + 63) / 64) {
      return InvalidArgument("sequence {}: a mask of {} words, expected {}", seq, r.mask.size(), (vocab_ + 63) / 64);
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
  if (!parts_.first && side_width_ == 0) return absl::OkStatus();
  for (size_t i = parts_.first ? 0 : batch.TotalRows() * WireRowBytes(wire_, dim_); i < rows.size();
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
      // In front of a windowed table stands the number of its first block.
      const uint32_t skipped = layer->spec.kv_group == kWindowGroup ? table[0] : 0;
      const BlockId* pages = table.data() + (layer->spec.kv_group == kWindowGroup ? 1 : 0);
      const uint32_t end = (s.first_position + s.row_count + block - 1) / block;
      for (uint32_t b = s.first_position / block; b < end; ++b) layer->pages->Stamp(pages[b - skipped], step);
    }
  }
}

Status Stage::Run(const StepBatch& batch, std::span<const std::byte> rows, uint64_t step, StepAnswer* answer,
                  LayerClock* clock) {
  GYRE_RETURN_IF_ERROR(Check(batch, rows));
  StampPages(batch, step);
  BeginStates(batch, step);
  x_rows_ = batch.TotalRows();
  if (x_.size() < x_rows_ * dim_) x_.resize(x_rows_ * dim_);
  const ModelSpec& spec = parts_.model->spec();
  if (parts_.first || side_width_ > 0) {
    ids_.resize(x_rows_);
    std::memcpy(ids_.data(), rows.data() + (rows.size() - x_rows_ * sizeof(TokenId)), x_rows_ * sizeof(TokenId));
  }
  if (parts_.first) {
    forward_.Embed(ids_, *parts_.ends.embedding, spec.embedding_scale, x_.data());
  } else {
    DecodeRows(wire_, rows.first(x_rows_ * WireRowBytes(wire_, dim_)), dim_, x_.data());
  }
  if (side_width_ > 0) forward_.SetTokens(ids_, embedding_, spec.embedding_scale, side_tokens_);
  places_.Fill(batch, false);
  for (const auto& layer : parts_.layers) {
    const bool ends = parts_.last && layer == parts_.layers.back();
    if (ends) logit_rows_.Fill(batch, true);
    // In a step of generated rows every row is a logit row, and one set of places serves.
    const bool some_rows = ends && logit_rows_.rows().size() < x_rows_;
    const TimedLayer timed(clock, x_rows_);
    forward_.RunLayer(*layer, KvOf(*layer), places_, some_rows ? logit_rows_ : places_, x_.data());
  }
  EndStates(batch, step);
  if (parts_.last) Answers(batch, answer);
  return absl::OkStatus();
}

void Stage::Answers(const StepBatch& batch, StepAnswer* answer) {
  const size_t rows = logit_rows_.rows().size();
  if (rows == 0) return;
  const ModelSpec& spec = parts_.model->spec();
  if (normed_.size() < rows * dim_) normed_.resize(rows * dim_);
  forward_.FinalNorm(x_.data(), rows, parts_.ends, spec.final_norm_eps, normed_.data());
  // Rows whose hidden state is the answer need no head; the others are moved to the front.
  headed_.clear();
  const float* hidden = normed_.data();
  for (const SeqRows& s : batch.seqs) {
    for (const RowRequest& r : s.requests) {
      for (uint32_t i = 0; i < r.count; ++i, hidden += dim_) {
        RowAnswer& out = answer->rows.emplace_back();
        out.seq = s.seq;
        out.incarnation = s.incarnation;
        out.position = s.first_position + r.first + i;
        out.mode = r.mode;
        if (r.mode == RowMode::kHidden) {
          out.values.assign(hidden, hidden + dim_);
          continue;
        }
        float* front = normed_.data() + headed_.size() * dim_;
        if (front != hidden) std::copy_n(hidden, dim_, front);
        headed_.push_back({.request = &r, .answer = answer->rows.size() - 1, .model = s.model});
      }
    }
  }
  // The head runs on slices of rows, so that a prompt of which all logits are asked takes no rows x vocabulary at once.
  constexpr size_t kSlice = 64;
  for (size_t first = 0; first < headed_.size(); first += kSlice) {
    const size_t count = std::min(kSlice, headed_.size() - first);
    if (logits_.size() < count * vocab_) logits_.resize(count * vocab_);
    forward_.Head(normed_.data() + first * dim_, count, parts_.ends, spec.logit_scale, spec.final_softcap,
                  logits_.data());
    for (size_t i = 0; i < count; ++i) {
      const HeadedRow& row = headed_[first + i];
      RowAnswer& out = answer->rows[row.answer];
      AnswerRow(*row.request, logits_.data() + i * vocab_, &out);
      if (out.mode == RowMode::kTopK) Keep(out, row.model, normed_.data() + (first + i) * dim_);
    }
  }
}

void Stage::AnswerRow(const RowRequest& request, const float* logits, RowAnswer* row) {
  auto take = [logits](std::span<const TokenId> ids, std::vector<TokenLogit>* out) {
    for (TokenId id : ids) out->push_back({.id = id, .logit = logits[static_cast<size_t>(id)]});
  };
  switch (request.mode) {
    case RowMode::kArgmax:
      backend_.TopK(logits, vocab_, 1, {}, request.mask, &top_);
      take(top_, &row->top);
      break;
    case RowMode::kTopK:
      take(request.touched, &row->touched);
      backend_.TopK(logits, vocab_, request.k, request.touched, request.mask, &top_);
      take(top_, &row->top);
      row->log_sum_exp = backend_.LogSumExp(logits, vocab_, 1.0, request.touched, request.mask);
      if (request.temperature > 0) {
        row->log_sum_exp_t = backend_.LogSumExp(logits, vocab_, 1.0 / static_cast<double>(request.temperature),
                                                request.touched, request.mask);
      }
      break;
    case RowMode::kTargets:
      take(request.touched, &row->touched);
      row->log_sum_exp = backend_.LogSumExp(logits, vocab_, 1.0, {}, {});
      break;
    case RowMode::kFullLogits: row->values.assign(logits, logits + vocab_); break;
    case RowMode::kHidden: break;  // answered without logits
  }
  if (request.logprobs) AnswerLogprobs(request, logits, row);
}

// From the same calls with the same arguments in every mode, so that the bits do not depend on how a row is sampled.
void Stage::AnswerLogprobs(const RowRequest& request, const float* logits, RowAnswer* row) {
  const bool targets = request.mode == RowMode::kTargets;
  const bool top = request.mode == RowMode::kTopK && request.touched.empty() && request.mask.empty();
  row->log_sum_exp_all = targets || top ? row->log_sum_exp : backend_.LogSumExp(logits, vocab_, 1.0, {}, {});
  if (top && request.k >= *request.logprobs) {
    row->best.assign(row->top.begin(), row->top.begin() + std::min<size_t>(*request.logprobs, row->top.size()));
    return;
  }
  backend_.TopK(logits, vocab_, *request.logprobs, {}, {}, &top_);
  for (TokenId id : top_) row->best.push_back({.id = id, .logit = logits[static_cast<size_t>(id)]});
}

void Stage::Keep(const RowAnswer& row, uint32_t model, const float* hidden) {
  if (kept_.size() < kKeptRows) kept_.emplace_back();
  Kept& slot = kept_[next_kept_];
  next_kept_ = (next_kept_ + 1) % kKeptRows;
  slot.key = {.seq = row.seq, .incarnation = row.incarnation, .model = model, .position = row.position};
  slot.hidden.assign(hidden, hidden + dim_);
}

LogitsAnswer Stage::Answer(const LogitsQuestion& question) {
  LogitsAnswer answer{.question = question, .logits = {}};
  for (const Kept& kept : kept_) {
    if (kept.key != question) continue;
    answer.logits.resize(vocab_);
    const ModelSpec& spec = parts_.model->spec();
    forward_.Head(kept.hidden.data(), 1, parts_.ends, spec.logit_scale, spec.final_softcap, answer.logits.data());
    break;
  }
  return answer;
}

}  // namespace gyre
