#include "worker/answers.h"

#include <algorithm>

namespace gyre {
namespace {

// Rows that go through the head at once: bounds the memory where a long prompt's logits are all wanted.
constexpr size_t kHeadRows = 64;

}  // namespace

void HiddenRing::Keep(const LogitsQuestion& key, const float* hidden) {
  if (kept_.size() < rows_) kept_.emplace_back();
  Row& row = kept_[next_];
  next_ = (next_ + 1) % rows_;
  row.key = key;
  row.hidden.assign(hidden, hidden + dim_);
}

const float* HiddenRing::Find(const LogitsQuestion& key) const {
  for (const Row& row : kept_) {
    if (row.key == key) return row.hidden.data();
  }
  return nullptr;
}

Answers::Answers(const ModelSpec& spec, Forward& forward, Backend& backend)
    : forward_(forward),
      backend_(backend),
      dim_(static_cast<size_t>(spec.dim)),
      vocab_(static_cast<size_t>(spec.vocab)),
      ring_(kKeptRows, dim_) {}

std::span<const uint32_t> Answers::Wanted(const StepBatch& batch) {
  wanted_.clear();
  uint32_t first = 0;
  for (const SeqRows& s : batch.seqs) {
    for (const RowRequest& r : s.requests) {
      for (uint32_t i = 0; i < r.count; ++i) wanted_.push_back(first + r.first + i);
    }
    first += s.row_count;
  }
  return wanted_;
}

void Answers::Make(const StepBatch& batch, StepAnswer* answer) {
  const size_t rows = wanted_.size();
  answer->rows.clear();
  if (rows == 0) return;
  answer->rows.reserve(rows);
  const float* normed = forward_.FinalNorm();
  const size_t room = std::min(rows, kHeadRows) * vocab_;
  if (logits_.size() < room) logits_.resize(room);
  size_t row = 0;
  for (const SeqRows& s : batch.seqs) {
    for (const RowRequest& r : s.requests) {
      for (uint32_t i = 0; i < r.count; ++i, ++row) {
        if (row % kHeadRows == 0) {
          forward_.Head(normed + row * dim_, std::min(kHeadRows, rows - row), logits_.data());
        }
        RowAnswer& out = answer->rows.emplace_back();
        out.seq = s.seq;
        out.incarnation = s.incarnation;
        out.position = s.first_position + r.first + i;
        out.mode = r.mode;
        const float* hidden = normed + row * dim_;
        AnswerRow(r, hidden, logits_.data() + row % kHeadRows * vocab_, &out);
        if (r.mode == RowMode::kTopK) {
          ring_.Keep({.seq = s.seq, .incarnation = s.incarnation, .model = s.model, .position = out.position}, hidden);
        }
      }
    }
  }
}

void Answers::AnswerRow(const RowRequest& request, const float* hidden, const float* logits, RowAnswer* row) {
  auto take = [logits](std::span<const TokenId> ids, std::vector<TokenLogit>* out) {
    out->reserve(ids.size());
    for (const TokenId id : ids) out->push_back({.id = id, .logit = logits[static_cast<size_t>(id)]});
  };
  switch (request.mode) {
    case RowMode::kArgmax:
      backend_.TopK(logits, vocab_, 1, {}, request.mask, &top_);
      take(top_, &row->top);
      return;
    case RowMode::kTopK:
      take(request.touched, &row->touched);
      backend_.TopK(logits, vocab_, request.k, request.touched, request.mask, &top_);
      take(top_, &row->top);
      row->log_sum_exp = backend_.LogSumExp(logits, vocab_, 1.0, request.touched, request.mask);
      if (request.temperature > 0) {
        row->log_sum_exp_t = backend_.LogSumExp(logits, vocab_, 1.0 / static_cast<double>(request.temperature),
                                                request.touched, request.mask);
      }
      return;
    case RowMode::kTargets:
      take(request.touched, &row->touched);
      row->log_sum_exp = backend_.LogSumExp(logits, vocab_, 1.0, {}, {});
      return;
    case RowMode::kFullLogits:
      row->values.assign(logits, logits + vocab_);
      return;
    case RowMode::kHidden:
      row->values.assign(hidden, hidden + dim_);
      return;
  }
}

LogitsAnswer Answers::Answer(const LogitsQuestion& question) {
  LogitsAnswer answer{.question = question, .logits = {}};
  if (const float* hidden = ring_.Find(question)) {
    answer.logits.resize(vocab_);
    forward_.Head(hidden, 1, answer.logits.data());
  }
  return answer;
}

}  // namespace gyre
