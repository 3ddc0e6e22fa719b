// The last stage's answers: final norm, head, and what is looked up in the logits.
#include <algorithm>

#include "worker/stage.h"

namespace gyre {

void Stage::Answers(const StepBatch& batch, StepAnswer* answer) {
  const size_t rows = logit_rows_.count();
  if (rows == 0) return;
  float* normed = normed_.EnsureCapacity(backend_.device(), rows * dim_);
  forward_.FinalNorm(x_.data(), rows, parts_.ends, parts_.model->spec(), normed);
  // Rows whose hidden state is the answer need no head; the others are moved to the front.
  headed_.clear();
  headed_numbers_.clear();
  hidden_numbers_.clear();
  hidden_answers_.clear();
  uint32_t number = 0;
  for (const SeqRows& s : batch.seqs) {
    for (const RowRequest& r : s.requests) {
      for (uint32_t i = 0; i < r.count; ++i, ++number) {
        RowAnswer& out = answer->rows.emplace_back();
        out.seq = s.seq;
        out.incarnation = s.incarnation;
        out.position = s.first_position + r.first + i;
        out.mode = r.mode;
        const size_t at = answer->rows.size() - 1;
        if (r.mode == RowMode::kHidden) {
          hidden_numbers_.push_back(number);
          hidden_answers_.push_back(at);
        } else {
          headed_numbers_.push_back(number);
          headed_.push_back({.request = &r, .answer = at, .model = s.model});
        }
      }
    }
  }
  if (!hidden_numbers_.empty()) AnswerHidden(answer);
  // The head runs on slices of rows, so that a prompt of which all logits are asked takes no rows x vocabulary at once.
  constexpr size_t kSlice = 64;
  for (size_t first = 0; first < headed_.size(); first += kSlice) {
    const size_t count = std::min(kSlice, headed_.size() - first);
    AnswerSlice(std::span(headed_).subspan(first, count), normed + first * dim_, answer);
  }
}

void Stage::AnswerHidden(StepAnswer* answer) {
  const size_t rows = hidden_numbers_.size();
  float* normed = normed_.data();
  float* hidden = hidden_.EnsureCapacity(backend_.device(), rows * dim_);
  backend_.GatherRows(normed, dim_, backend_.Upload(std::span<const uint32_t>(hidden_numbers_)), dim_, hidden);
  backend_.GatherRows(normed, dim_, backend_.Upload(std::span<const uint32_t>(headed_numbers_)), dim_, normed);
  const auto values = backend_.Download(static_cast<const float*>(hidden), rows * dim_);
  backend_.Finish();
  for (size_t i = 0; i < rows; ++i) {
    const auto row = values.subspan(i * dim_, dim_);
    answer->rows[hidden_answers_[i]].values.assign(row.begin(), row.end());
  }
}

void Stage::AnswerSlice(std::span<const HeadedRow> rows, const float* hidden, StepAnswer* answer) {
  const ModelSpec& spec = parts_.model->spec();
  float* logits = logits_.EnsureCapacity(backend_.device(), rows.size() * vocab_);
  forward_.Head(hidden, rows.size(), parts_.ends, spec, logits);
  // Calls with the same arguments in every mode, so that the bits of log-probabilities do not depend on how a row is
  // sampled.
  constexpr size_t kNone = SIZE_MAX;
  struct Asked {
    size_t top = kNone, biased = kNone, sum = kNone, sum_t = kNone, best = kNone, sum_all = kNone;
    std::span<const float> all;
  };
  std::vector<Asked> asked(rows.size());
  selected_.Clear();
  const RowRequest* uploaded = nullptr;  // a request may stand for many rows
  std::span<const TokenId> biased;
  std::span<const uint64_t> mask;
  for (size_t i = 0; i < rows.size(); ++i, logits += vocab_) {
    const RowRequest& request = *rows[i].request;
    Asked& a = asked[i];
    if (&request != uploaded) {
      biased = backend_.Upload(std::span<const TokenId>(request.biased));
      mask = request.mask_number ? masks_.Find(*request.mask_number)
                                 : backend_.Upload(std::span<const uint64_t>(request.mask));
      uploaded = &request;
    }
    switch (request.mode) {
      case RowMode::kArgmax: a.top = selected_.AskBest(logits, 1, {}, mask); break;
      case RowMode::kTopK:
        a.biased = selected_.AskLogits(logits, request.biased, backend_);
        a.top = selected_.AskBest(logits, request.k, biased, mask);
        if (request.temperature > 0)
          a.sum_t = selected_.AskLogSumExp(logits, 1.0 / static_cast<double>(request.temperature), biased, mask);
        break;
      case RowMode::kTargets:
        a.biased = selected_.AskLogits(logits, request.biased, backend_);
        a.sum = selected_.AskLogSumExp(logits, 1.0, {}, {});
        break;
      case RowMode::kFullLogits: a.all = backend_.Download(static_cast<const float*>(logits), vocab_); break;
      case RowMode::kHidden: break;  // answered without logits
    }
    if (!request.logprobs) continue;
    const bool targets = request.mode == RowMode::kTargets;
    const bool top = request.mode == RowMode::kTopK && request.biased.empty() && mask.empty();
    if (targets) {
      a.sum_all = a.sum;
    } else if (top && request.temperature == 1) {
      a.sum_all = a.sum_t;
    } else {
      a.sum_all = selected_.AskLogSumExp(logits, 1.0, {}, {});
    }
    a.best = top && request.k >= *request.logprobs ? a.top : selected_.AskBest(logits, *request.logprobs, {}, {});
  }
  selected_.Find(vocab_, backend_);
  backend_.Finish();
  // Afterwards, as its place is another one in every step: without it equal steps are equal calls.
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowAnswer& out = answer->rows[rows[i].answer];
    if (out.mode == RowMode::kTopK) Keep(out, rows[i].model, hidden + i * dim_);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const Asked& a = asked[i];
    RowAnswer& out = answer->rows[rows[i].answer];
    if (a.biased != kNone) out.biased = selected_.Logits(a.biased);
    if (a.top != kNone) out.top = selected_.Best(a.top);
    if (a.sum != kNone) out.log_sum_exp = selected_.LogSumExp(a.sum);
    if (a.sum_t != kNone) out.log_sum_exp_t = selected_.LogSumExp(a.sum_t);
    if (a.sum_all != kNone) out.log_sum_exp_all = selected_.LogSumExp(a.sum_all);
    if (a.best != kNone) {
      out.best = selected_.Best(a.best);
      if (out.best.size() > *rows[i].request->logprobs) out.best.resize(*rows[i].request->logprobs);
    }
    out.values.assign(a.all.begin(), a.all.end());
  }
}

void Stage::SetMasks(const std::vector<NumberedMask>& masks) { masks_.Set(masks, backend_); }

void Stage::Keep(const RowAnswer& row, uint32_t model, const float* hidden) {
  float* kept = kept_.EnsureCapacity(backend_.device(), kKeptRows * dim_);
  if (kept_keys_.size() < kKeptRows) kept_keys_.emplace_back();
  kept_keys_[next_kept_] = {.seq = row.seq, .incarnation = row.incarnation, .model = model, .position = row.position};
  backend_.Copy(hidden, kept + next_kept_ * dim_, dim_ * sizeof(float));
  next_kept_ = (next_kept_ + 1) % kKeptRows;
}

LogitsAnswer Stage::Answer(const FullLogitsRequest& question) {
  LogitsAnswer answer{.question = question, .logits = {}};
  // The newest row of this position: one before it may have been a draft's.
  size_t found = kKeptRows;
  for (size_t i = 1; i <= kept_keys_.size() && found == kKeptRows; ++i) {
    const size_t at = (next_kept_ + kKeptRows - i) % kKeptRows;
    if (kept_keys_[at] == question) found = at;
  }
  if (found == kKeptRows) return answer;
  const ModelSpec& spec = parts_.model->spec();
  float* logits = logits_.EnsureCapacity(backend_.device(), vocab_);
  backend_.Recycle();
  forward_.Head(kept_.data() + found * dim_, 1, parts_.ends, spec, logits);
  const auto values = backend_.Download(static_cast<const float*>(logits), vocab_);
  backend_.Finish();
  answer.logits.assign(values.begin(), values.end());
  return answer;
}

}  // namespace gyre
